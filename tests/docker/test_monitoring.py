"""Prometheus' rules and Grafana's dashboard: valid, tested, and about metrics that there are."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deployment
import pytest
import yaml
from clock import Clock
from deployment import Expression
from line_harness import events
from serve_harness import Server, Trainer, said, served, wait_until
from servers.process import program

from streamer.metrics.catalogue import CATALOGUE as TRAINER
from streamer.metrics.catalogue import SERVER
from streamer.serve.metrics import ServerMetrics

CATALOGUE = TRAINER | SERVER

SCRAPED_LABELS = {"job", "instance", "le"}
"""Labels that Prometheus adds."""
EXPRESSIONS = list(deployment.expressions())


Promtool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def promtool() -> Promtool:
    """Runs Prometheus' own tool with these arguments."""
    path = program("promtool", package="prometheus")
    return lambda *arguments: subprocess.run(
        [path, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


# rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", deployment.CONFIG), ("check", "rules", deployment.ALERTS)],
    ids=["config", "rules"],
)
def test_promtool_accepts(promtool: Promtool, arguments: tuple[object, ...]):
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_only_then(promtool: Promtool):
    done = promtool("test", "rules", deployment.ALERT_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_trainer_that_is_away_for_a_minute_is_an_alert_while_its_server_goes_on(promtool: Promtool, tmp_path):
    """The ages that a server shows, as Prometheus scrapes and judges them."""
    clock, metrics = Clock(), ServerMetrics()
    trainer, server = Trainer(tmp_path / "points"), Server(tmp_path / "points", clock)
    trainer.learn(events(100))
    server.reach(trainer)
    wanted = said(trainer.learner, "u1")
    trainer.close()
    wait_until(lambda: server.service.ready()[0], "readiness")
    clock.now, ages = server.service.end.time_s, []
    for _ in range(13):
        metrics.refresh(server.service)
        ages.append(metrics.registry.get_sample_value("streamer_server_age_seconds"))
        assert served(server.service, "u1") == wanted
        clock.now += 5
    server.close()
    assert ages == list(range(0, 65, 5))
    assert metrics.registry.get_sample_value("streamer_server_ready") == 1
    (rule,) = [rule for rule in deployment.alerts() if rule["alert"] == "StreamerServerStale"]
    fires = {
        "exp_labels": {**rule["labels"], "instance": "s"},
        "exp_annotations": {**rule["annotations"], "summary": "s serves a model that is 1m 0s old."},
    }
    wanted_at = {"30s": [], "60s": [fires]}
    tests = [{"eval_time": at, "alertname": rule["alert"], "exp_alerts": found} for at, found in wanted_at.items()]
    series = {"series": 'streamer_server_age_seconds{instance="s"}', "values": " ".join(map(str, ages))}
    scraped = yaml.safe_load(deployment.CONFIG.read_text())["global"]
    case = {"interval": scraped["scrape_interval"], "input_series": [series], "alert_rule_test": tests}
    file = tmp_path / "a_minute.yml"
    file.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(deployment.ALERTS)],
                "evaluation_interval": scraped["evaluation_interval"],
                "tests": [case],
            }
        )
    )
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_to_fire_and_not_to_fire():
    groups = yaml.safe_load(deployment.ALERT_TESTS.read_text())["tests"]
    cases = [(case["alertname"], bool(case["exp_alerts"])) for group in groups for case in group["alert_rule_test"]]
    names = {rule["alert"] for rule in deployment.alerts()}
    assert set(cases) == set(itertools.product(names, (True, False)))


@pytest.mark.parametrize("rule", deployment.alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]):
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description"}


# metrics --------------------------------------------------------------------------------------------------------------


def selectors(text: str) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Metrics of ours with the labels that they are chosen by, and how."""
    found = re.findall(r"\b(streamer_[a-z0-9_]+)(?:\{([^}]*)\})?", text)
    return [(name, {k: (how, v) for k, how, v in re.findall(r'(\w+)\s*(=~|=)"([^"]*)"', w)}) for name, w in found]


def labels_of(expression: str) -> set[str]:
    """All labels that the metrics of an expression have."""
    return {label.name for name in deployment.metrics_of(expression) for label in CATALOGUE[name].labels}


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda expression: expression.where)
def test_metrics_and_labels_that_are_asked_for_exist(expression: Expression):
    assert deployment.metrics_of(expression.text) <= CATALOGUE.keys()
    known = labels_of(expression.text) | SCRAPED_LABELS
    for group in re.findall(r"\b(?:by|on|ignoring) \(([^)]*)\)", expression.text):
        assert set(group.split(", ")) <= known
    for name, chosen in selectors(expression.text):
        metric = CATALOGUE[re.sub(r"_(bucket|sum|count)$", "", name)]
        own = {label.name: label for label in metric.labels}
        assert chosen.keys() <= own.keys() | SCRAPED_LABELS
        assert all(v in own[k].values for k, (how, v) in chosen.items() if k in own and how == "=" and own[k].values)


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda expression: expression.where)
def test_rates_are_taken_of_counters_and_quantiles_of_histograms(expression: Expression):
    for name in re.findall(r"(?:rate|increase)\((streamer_\w+)", expression.text):
        metric = CATALOGUE[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert metric.kind == ("counter" if name == metric.name else "histogram")
    for name, _ in selectors(expression.text):
        assert name in CATALOGUE or CATALOGUE[re.sub(r"_(bucket|sum|count)$", "", name)].kind == "histogram"


# the dashboard --------------------------------------------------------------------------------------------------------

PANELS = [panel for panel in deployment.dashboard()["panels"] if panel["type"] != "row"]


def test_a_person_can_take_the_dashboard_in():
    assert 25 <= len(PANELS) <= 35
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


def test_queries_of_the_dashboard_are_promql(promtool: Promtool, tmp_path: Path):
    rules = [{"record": f"query{k}", "expr": expression.text} for k, expression in enumerate(deployment.drawn())]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    done = promtool("check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    everything = deployment.dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        x, y, width, height = (panel["gridPos"][name] for name in "xywh")
        cells = set(itertools.product(range(x, x + width), range(y, y + height)))
        assert x + width <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_panels_ask_the_source_that_is_provisioned():
    text = (deployment.DOCKER / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text()
    (source,) = yaml.safe_load(text)["datasources"]
    wanted = {"type": source["type"], "uid": source["uid"]}
    asked = [panel["datasource"] for panel in PANELS]
    asked += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    asked += [variable["datasource"] for variable in deployment.dashboard()["templating"]["list"]]
    assert all(found == wanted for found in asked)


def test_the_cache_comes_first_stacked_by_band():
    rows = [panel["title"] for panel in deployment.dashboard()["panels"] if panel["type"] == "row"]
    assert rows[:2] == ["At a glance", "What the cache is made of"]
    first = next(panel for panel in PANELS if panel["title"] == "Slots of the cache by popularity band")
    assert first["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    assert [target["legendFormat"] for target in first["targets"]] == ["head", "torso", "tail"]


# documentation --------------------------------------------------------------------------------------------------------


def test_every_alert_is_documented_and_no_other():
    text = (deployment.ROOT / "docs" / "docker.md").read_text()
    assert re.findall(r"^\| `(Streamer\w+)` \|", text, re.MULTILINE) == [rule["alert"] for rule in deployment.alerts()]
