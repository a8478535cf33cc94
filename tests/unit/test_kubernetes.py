"""deploy/kubernetes, without a cluster: its form by Kubernetes' schemas, and how its parts fit together."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agents.settings import OrderSettings
from streams.environment import check_names

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ["1.30", "1.37"]
OBJECTS: list[dict[str, Any]] = [
    each
    for file in sorted(FOLDER.glob("*.yaml"))
    if file.name != "kustomization.yaml"
    for each in yaml.safe_load_all(file.read_text())
]
#: Kinds of Kubernetes itself; the others are the Prometheus operator's.
OWN = [each for each in OBJECTS if "monitoring.coreos.com" not in each["apiVersion"]]
PODS = {e["metadata"]["name"]: e["spec"]["template"] for e in OWN if "template" in e.get("spec", {})}
SERVICES = {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == "Service"}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def name_of(thing: dict[str, Any]) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("thing", OWN, ids=name_of)
def test_each_object_is_one_that_kubernetes_takes(thing: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(thing, version, strict=True)


def test_an_object_with_an_unknown_field_is_found() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**OWN[0], "unknown": 1}, VERSIONS[-1], strict=True)


def test_kustomize_takes_every_file() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml"} == {each.name for each in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("name", PODS)
def test_each_pod_runs_the_compose_files_command_as_nobody(name: str) -> None:
    spec = PODS[name]["spec"]
    (container,) = spec["containers"]
    assert container["args"] == COMPOSE[{"worker": "worker-1"}.get(name, name)]["command"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"requests", "limits"} == container["resources"].keys()
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claimed = {"var"} if name == "worker" else set()
    assert mounted - claimed == {volume["name"] for volume in spec["volumes"]}
    if name != "migrate":
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
        assert spec["terminationGracePeriodSeconds"] == 45


def test_settings_are_those_that_the_application_has() -> None:
    (settings,) = (each["data"] for each in OBJECTS if each["kind"] == "ConfigMap")
    own = {each["name"] for pod in PODS.values() for each in pod["spec"]["containers"][0].get("env", ())}
    check_names(settings | dict.fromkeys(own, ""), OrderSettings.model_fields)
    secrets = {Path(value).name for name, value in settings.items() if name.endswith("_FILE")} | {"web-token"}
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert [each for each in secrets if f"--from-file={each}" not in page] == []


def test_each_selector_finds_pods_or_services_with_its_port() -> None:
    labels = {pod["metadata"]["labels"]["app"]: pod for pod in PODS.values() if "metadata" in pod}
    for service in SERVICES.values():
        (container,) = labels[service["spec"]["selector"]["app"]]["spec"]["containers"]
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {
            port["name"]: port["containerPort"] for port in container["ports"]
        }
    for budget in (each for each in OBJECTS if each["kind"] == "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"]["app"] in labels
    found = set()
    for monitor in (each for each in OBJECTS if each["kind"] == "ServiceMonitor"):
        selector = monitor["spec"]["selector"]
        wanted = [*selector.get("matchLabels", {}).values()]
        wanted += [value for each in selector.get("matchExpressions", ()) for value in each["values"]]
        for service in SERVICES.values():
            if service["metadata"]["labels"]["app"] in wanted:
                found.add(service["metadata"]["name"])
                ports = {port["name"] for port in service["spec"]["ports"]}
                assert {each["port"] for each in monitor["spec"]["endpoints"]} <= ports
    assert found == {"workers", "relay", "api"}
