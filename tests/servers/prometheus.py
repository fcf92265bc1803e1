"""A real Prometheus for tests, with a configuration of theirs."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from servers.process import LocalServer, free_ports, program

Series = dict[str, float]
"""Values by one label."""


class PrometheusServer(LocalServer):
    """Prometheus as a process of this machine, with a port and data of its own.

    It is never looked for elsewhere: what it scrapes are processes that the tests start.

    Args:
        config: path of the configuration; its rule files are relative to it.
    """

    def __init__(self, config: Path) -> None:
        self._program = program("prometheus", package="prometheus")
        super().__init__("prometheus", f"127.0.0.1:{free_ports(1)[0]}")
        self._config = config

    def start(self) -> None:
        options = [f"--config.file={self._config}", f"--storage.tsdb.path={self.home / 'data'}"]
        options += [f"--web.listen-address={self.address}", "--log.level=warn"]
        self._run([self._program, *options], self._answers)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now: a list of series, each with `metric` (its labels) and `value` (time, text).

        Raises:
            ValueError: it is no PromQL; the text says where.
        """
        found: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float | None:
        """What an expression of a single value is now; None without one."""
        found = self.query(expression)
        assert len(found) <= 1, f"{expression} has {len(found)} values"
        return float(found[0]["value"][1]) if found else None

    def values(self, expression: str, label: str) -> Series:
        """What an expression is now, by a label."""
        return {series["metric"].get(label, ""): float(series["value"][1]) for series in self.query(expression)}

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with their state and health."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, what: str, **parameters: str) -> dict[str, Any]:
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: dict[str, Any] = json.load(answer)["data"]
                return found
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters or what}: {json.load(error).get('error')}") from error

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=2):
                return True
        except OSError:
            return False
