"""The manifests and the unit of deploy/: valid, and true of the image, the options and the alerts."""

from __future__ import annotations

from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from deployment import ALERTS, ROOT

from streamer.cli.main import cli

KUBERNETES = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
MANIFESTS = [
    manifest for name in KUSTOMIZATION["resources"] for manifest in yaml.safe_load_all((KUBERNETES / name).read_text())
]
OF_THE_OPERATOR = "monitoring.coreos.com/v1"
"""Kinds whose schemas the cluster's operator brings; the others are Kubernetes' own."""


def found(kind: str, name: str) -> dict[str, Any]:
    """A manifest."""
    (manifest,) = [m for m in MANIFESTS if m["kind"] == kind and m["metadata"]["name"] == name]
    return manifest


def container(kind: str, name: str) -> dict[str, Any]:
    """The only one of its pods."""
    (only,) = found(kind, name)["spec"]["template"]["spec"]["containers"]
    return only


WORKLOADS = [("StatefulSet", "trainer"), ("Deployment", "server")]


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_manifests_fit_the_schemas_of_kubernetes(version: str):
    checked = [manifest for manifest in MANIFESTS if manifest["apiVersion"] != OF_THE_OPERATOR]
    for manifest in checked:
        kubernetes_validate.validate(manifest, version, strict=True)
    assert {manifest["kind"] for manifest in checked} >= {"StatefulSet", "Deployment", "PodDisruptionBudget", "Service"}


def test_all_manifests_are_listed():
    names = {path.name for path in KUBERNETES.glob("*.yaml")}
    assert set(KUSTOMIZATION["resources"]) == names - {"kustomization.yaml"}


@pytest.mark.parametrize(("kind", "name"), WORKLOADS)
def test_selectors_find_the_pods(kind: str, name: str):
    labels = found(kind, name)["spec"]["template"]["metadata"]["labels"]
    selectors = [found(kind, name)["spec"]["selector"]["matchLabels"], found("Service", name)["spec"]["selector"]]
    if kind == "Deployment":
        selectors.append(found("PodDisruptionBudget", name)["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)


@pytest.mark.parametrize(("kind", "name"), WORKLOADS)
def test_probes_ask_the_port_that_listens_and_a_start_may_take_minutes(kind: str, name: str):
    of_pod = container(kind, name)
    ports = {port["name"] for port in of_pod["ports"]}
    paths = {probe: of_pod[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert {of_pod[probe]["httpGet"]["port"] for probe in paths} <= ports
    assert of_pod["startupProbe"]["periodSeconds"] * of_pod["startupProbe"]["failureThreshold"] >= 300


@pytest.mark.parametrize(("kind", "name"), WORKLOADS)
def test_commands_and_variables_are_understood_by_streamer(kind: str, name: str, monkeypatch: pytest.MonkeyPatch):
    of_pod = container(kind, name)
    (config,) = KUSTOMIZATION["configMapGenerator"]
    for variable, value in [literal.split("=", 1) for literal in config["literals"]]:
        monkeypatch.setenv(variable, value)
    for entry in of_pod.get("env", ()):
        monkeypatch.setenv(entry["name"], "a-token-of-sixteen-letters")
    command_name, *arguments = of_pod["args"]
    command = cli.get_command(click.Context(cli), command_name)
    with command.make_context(command_name, arguments) as ctx:
        assert ctx.params["bootstrap_servers"] == "kafka.kafka:9092"
        assert ctx.params["publish_topic"] == "streamer-snapshots"


def test_alerts_and_the_targets_they_ask_for_are_those_of_prometheus():
    assert found("PrometheusRule", "streamer")["spec"]["groups"] == yaml.safe_load(ALERTS.read_text())["groups"]
    trainer = found("ServiceMonitor", "streamer")["spec"]
    assert found("Service", "trainer")["metadata"]["labels"][trainer["jobLabel"]] == "streamer"
    (endpoint,) = found("ServiceMonitor", "streamer-server")["spec"]["endpoints"]
    assert {"targetLabel": "job", "replacement": "streamer-server"} in endpoint["relabelings"]
    (secret,) = KUSTOMIZATION["secretGenerator"]
    assert endpoint["authorization"]["credentials"]["name"] == secret["name"]


def test_pods_run_without_rights_and_write_only_to_their_volumes():
    for kind, name in WORKLOADS:
        pod = found(kind, name)["spec"]["template"]["spec"]
        of_pod = container(kind, name)
        assert pod["securityContext"]["runAsUser"] == 10001
        assert of_pod["securityContext"]["readOnlyRootFilesystem"]
        assert {mount["mountPath"] for mount in of_pod["volumeMounts"]} == {"/var/lib/streamer", "/tmp"}
