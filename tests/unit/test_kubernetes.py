"""deploy/kubernetes, without a cluster: its form by Kubernetes' schemas, and how its parts fit together."""

import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml

from agents.settings import OrderSettings
from streams.environment import check_names
from tests.waiting import BOUND

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
MONITORING = ROOT / "deploy" / "kubernetes-monitoring"
VERSIONS = ["1.30", "1.37"]


def objects_of(folder: Path) -> list[dict[str, Any]]:
    return [
        each
        for file in sorted(folder.glob("*.yaml"))
        if file.name != "kustomization.yaml"
        for each in yaml.safe_load_all(file.read_text())
    ]


APPLICATION = objects_of(FOLDER)
OBJECTS = [*APPLICATION, *objects_of(MONITORING)]
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
SETTINGS = dict(
    line.split("=", 1)
    for line in (FOLDER / "settings.env").read_text().splitlines()
    if line and not line.startswith("#")
)
#: What Kubernetes' standard "restricted" wants of each container; the rest is of the pod.
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
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


@pytest.mark.parametrize("folder", [FOLDER, MONITORING], ids=lambda folder: folder.name)
def test_kustomize_takes_every_file(folder: Path) -> None:
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml"} - {"../kubernetes"} == {
        each.name for each in folder.glob("*.yaml")
    }


def kustomized(folder: Path) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl")
    command = ["kubectl", "kustomize", folder]
    made = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
    assert made.returncode == 0, made.stderr
    return [*yaml.safe_load_all(made.stdout)]


@pytest.mark.parametrize("folder", [FOLDER, MONITORING], ids=lambda folder: folder.name)
def test_kustomize_makes_what_kubernetes_takes(folder: Path) -> None:
    made = kustomized(folder)
    assert len(made) == len(APPLICATION) + 1 + (len(OBJECTS) - len(APPLICATION)) * (folder == MONITORING)
    for each in made:
        if "monitoring.coreos.com" not in each["apiVersion"]:
            kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
        assert "steadfaust" in (each["metadata"].get("namespace"), each["metadata"]["name"])


def test_a_changed_setting_restarts_the_pods(tmp_path: Path) -> None:
    """The ConfigMap has a hash of the settings in its name, and pods name it so."""

    def names(folder: Path) -> set[str]:
        made = kustomized(folder)
        (config,) = (each["metadata"]["name"] for each in made if each["kind"] == "ConfigMap")
        used = {
            source["configMapRef"]["name"]
            for each in made
            if "template" in each.get("spec", {})
            for container in containers(each["spec"]["template"]["spec"])
            for source in container.get("envFrom", ())
        }
        assert used == {config}
        return used

    changed = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    assert names(changed) == names(FOLDER)
    with (changed / "settings.env").open("a") as file:
        file.write("STEADFAUST_LOG_LEVEL=debug\n")
    assert names(changed) != names(FOLDER)


def test_on_openshift_no_pod_asks_for_a_user_or_group(tmp_path: Path) -> None:
    """The namespace's own are given to it: other ones are refused."""
    changed = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    file = changed / "kustomization.yaml"
    text = file.read_text()
    assert "# On OpenShift: components: [openshift]" in text
    file.write_text(text.replace("# On OpenShift: ", ""))
    pods = [
        each["spec"]["template"]["spec"] for each in kustomized(changed) if "template" in each.get("spec", {})
    ]
    assert len(pods) == len(PODS)
    for pod in pods:
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["containers"], *pod.get("initContainers", ())]


@pytest.mark.parametrize("name", PODS)
def test_each_pod_runs_the_compose_files_command_as_nobody(name: str) -> None:
    spec = PODS[name]["spec"]
    (container,) = spec["containers"]
    assert container["args"] == COMPOSE[{"worker": "worker-1"}.get(name, name)]["command"]
    assert spec["securityContext"]["runAsNonRoot"]
    for each in containers(spec):
        assert RESTRICTED.items() <= each["securityContext"].items()
        assert each["securityContext"]["readOnlyRootFilesystem"]
        assert {"requests", "limits"} == each["resources"].keys()
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claimed = {"var"} if name == "worker" else set()
    assert mounted - claimed == {volume["name"] for volume in spec["volumes"]}
    if name != "migrate":
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
        assert spec["terminationGracePeriodSeconds"] == 45


def test_settings_are_those_that_the_application_has() -> None:
    assert KUSTOMIZATION["configMapGenerator"] == [{"name": "settings", "envs": ["settings.env"]}]
    own = {each["name"] for pod in PODS.values() for each in pod["spec"]["containers"][0].get("env", ())}
    check_names(SETTINGS | dict.fromkeys(own, ""), OrderSettings.model_fields)
    secrets = {Path(value).name for name, value in SETTINGS.items() if name.endswith("_FILE")} | {"web-token"}
    secrets |= {Path(sslrootcert()).name}
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert [each for each in secrets if f"--from-file={each}" not in page] == []


def sslrootcert() -> str:
    (value,) = parse_qs(urlsplit(SETTINGS["STEADFAUST_POSTGRES_URL"]).query)["sslrootcert"]
    return value


def test_postgres_has_to_show_a_certificate_for_its_name() -> None:
    query = parse_qs(urlsplit(SETTINGS["STEADFAUST_POSTGRES_URL"]).query)
    assert query == {"sslmode": ["verify-full"], "sslrootcert": ["/run/secrets/steadfaust/postgres-ca.pem"]}


@pytest.mark.parametrize("name", ["api", "relay"])
def test_what_needs_the_database_waits_for_its_migrations(name: str) -> None:
    (first,) = PODS[name]["spec"]["initContainers"]
    assert first["args"] == ["steadfaust", "db", "wait"]
    (container,) = PODS[name]["spec"]["containers"]
    assert {key: first[key] for key in ("image", "envFrom", "volumeMounts")} == {
        key: container[key] for key in ("image", "envFrom", "volumeMounts")
    }


def test_the_api_takes_requests_until_none_is_sent_to_it() -> None:
    """Endpoints learn of a pod's end after the pod does."""
    spec = PODS["api"]["spec"]
    command, seconds = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert 5 <= int(seconds) <= spec["terminationGracePeriodSeconds"] - 30


@pytest.mark.parametrize("name", ["worker", "api", "relay"])
def test_several_pods_are_spread_over_nodes_and_zones(name: str) -> None:
    spread = PODS[name]["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    assert {each["labelSelector"]["matchLabels"]["app"] for each in spread} == {name}


def test_the_namespace_refuses_pods_with_more_rights() -> None:
    (namespace,) = (each for each in OBJECTS if each["kind"] == "Namespace")
    assert namespace["metadata"]["name"] == KUSTOMIZATION["namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_no_pod_takes_connections_that_no_policy_names() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in OBJECTS if each["kind"] == "NetworkPolicy"}
    assert policies["all"]["podSelector"] == {}
    assert policies["all"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policies["all"]
    ports = {each["port"] for rule in policies["all"]["egress"] for each in rule.get("ports", ())}
    brokers = {int(each.rpartition(":")[2]) for each in SETTINGS["STEADFAUST_BOOTSTRAP"].split(",")}
    assert ports == {53, urlsplit(SETTINGS["STEADFAUST_POSTGRES_URL"]).port, 443, *brokers}
    named = {port["name"] for pod in PODS.values() for port in pod["spec"]["containers"][0].get("ports", ())}
    apps = {pod["metadata"]["labels"]["app"] for pod in PODS.values() if "metadata" in pod}
    for policy in policies.values():
        assert set(policy["podSelector"].get("matchLabels", {}).values()) <= apps
        for rule in policy.get("ingress", ()):
            assert rule["from"]
            assert {port["port"] for port in rule["ports"]} <= named


def test_a_worker_that_is_scaled_away_leaves_no_volume() -> None:
    (spec,) = (each["spec"] for each in OBJECTS if each["kind"] == "StatefulSet")
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenScaled": "Delete", "whenDeleted": "Retain"}


def test_monitoring_is_an_overlay() -> None:
    assert not [each for each in APPLICATION if "monitoring.coreos.com" in each["apiVersion"]]
    assert {each["kind"] for each in objects_of(MONITORING)} == {"ServiceMonitor", "NetworkPolicy"}


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
