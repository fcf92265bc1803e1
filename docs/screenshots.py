"""Takes the pictures of the README from a real run of the demo: `make pictures`.

The live page of the trainer and the page of the server, light and dark, by headless Chromium.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import closing, suppress
from pathlib import Path

from chromium import Browser

PICTURES = Path(__file__).parent / "pictures"
SIZE = (1400, 900)
LEARNED_S = 25.0
"""How long the model learns before it is looked at."""
DEMO = [
    sys.executable,
    "-m",
    "streamer",
    "demo",
    "--log-format",
    "plain",
    "--serve",
    "--port",
    "18080",
    "--data-dir",
    "demo",
]


def address(log: Path) -> str:
    """Where the trainer's live page is, once its log says so."""
    while not (found := re.search(r"live page at (http://\S+/),", log.read_text())):
        time.sleep(0.2)
    return found.group(1)


def take(browser: Browser, url: str, name: str) -> None:
    """A picture of a page in light and one in dark."""
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.driver.get(url)
        time.sleep(4)
        browser.driver.save_screenshot(str(PICTURES / f"{name}-{scheme}.png"))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            demo = subprocess.Popen(DEMO, stdout=output, stderr=output, cwd=directory)
        try:
            with closing(Browser(Path(directory) / "profile")) as browser:
                browser.size(*SIZE)
                url = address(log)
                time.sleep(LEARNED_S)
                take(browser, url, "live-page")
                server = "http://127.0.0.1:18080/"
                with suppress(OSError), urllib.request.urlopen(server, timeout=5):
                    take(browser, server, "server-page")
        finally:
            demo.terminate()
            demo.wait()


if __name__ == "__main__":
    main()
