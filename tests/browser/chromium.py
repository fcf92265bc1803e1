"""Headless Chromium for tests: found on the PATH, or installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from servers.process import program

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
"""No window, and no word to anybody but the server that is tested."""


class Browser:
    """One browser with a profile of its own.

    Args:
        profile: an empty directory.

    Raises:
        ServerUnavailable: there is no Chromium, and it cannot be installed.
    """

    def __init__(self, profile: Path) -> None:
        options = Options()
        options.binary_location = program("chromium", "chromium-browser", "google-chrome", package="chromium")
        for argument in (*QUIET, f"--user-data-dir={profile}", "--window-size=1400,900"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(program("chromedriver", package="chromium-driver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_script_timeout(30)

    def size(self, width: int, height: int) -> None:
        """Show pages as on a screen of this size; narrow ones are phones."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """Prefer `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def ask(self, script: str, *arguments: Any) -> Any:
        """What an expression of JavaScript amounts to; `arguments` are its arguments."""
        return self.driver.execute_script(f"return ({script})", *arguments)

    def text(self, selector: str) -> str:
        """The text of the first element."""
        return str(self.ask("(document.querySelector(arguments[0]) || {textContent: ''}).textContent", selector))

    def complaints(self) -> list[str]:
        """What the console has got since the last time, warnings and worse."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
