"""What stands in docker/, read for tests: the image, the services, the dashboard, the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
CONFIG, ALERTS, ALERT_TESTS = (DOCKER / "prometheus" / f"{n}.yml" for n in ("prometheus", "alerts", "alerts.test"))


class Instruction(NamedTuple):
    """One instruction of the Dockerfile."""

    name: str
    rest: str


def instructions() -> list[Instruction]:
    """The Dockerfile's, with continued lines joined and comments gone."""
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [Instruction(name, rest.strip()) for name, rest in found]


def last(name: str) -> str:
    """What an instruction says the last time, which is what counts."""
    return [found.rest for found in instructions() if found.name == name][-1]


def copied() -> list[str]:
    """Paths of the repository that the image is built from."""
    copies = [found.rest for found in instructions() if found.name == "COPY" and "--from" not in found.rest]
    return [path for copy in copies for path in copy.split()[:-1]]


def image_environment() -> dict[str, str]:
    """Variables that the image sets."""
    return dict(pair.split("=", 1) for pair in last("ENV").split())


def services() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    """Those that run our own image."""
    return {name: service for name, service in services().items() if service["image"] == "streamer"}


def trainers() -> list[str]:
    """Names of the services that train."""
    return [name for name, service in ours().items() if service["command"][0] == "run"]


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """All of a compose file."""
    return _yaml(DOCKER / name)


def scraped() -> list[str]:
    """Addresses that Prometheus scrapes."""
    jobs = _yaml(CONFIG)["scrape_configs"]
    return [target for job in jobs for static in job["static_configs"] for target in static["targets"]]


def alerts() -> list[dict[str, Any]]:
    """All alerting rules."""
    return [rule for group in _yaml(ALERTS)["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads((DOCKER / "grafana" / "dashboards" / "streamer.json").read_text())
    return found


class Expression(NamedTuple):
    """A PromQL expression and where it stands."""

    where: str
    text: str


def drawn(rate_interval: str = "1m") -> list[Expression]:
    """What the dashboard asks, as Prometheus is asked when all trainers are chosen."""
    found = [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [Expression(t, e.replace("$__rate_interval", rate_interval).replace("$trainer", ".*")) for t, e in found]


def expressions() -> Iterator[Expression]:
    """Everything that Prometheus is asked: by the dashboard and by the rules."""
    yield from drawn()
    yield from (Expression(rule["alert"], rule["expr"]) for rule in alerts())


def metrics_of(expression: str) -> set[str]:
    """Metrics of ours that an expression names; a histogram by its own name."""
    names = re.findall(r"\bstreamer_[a-z0-9_]+", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def _yaml(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found
