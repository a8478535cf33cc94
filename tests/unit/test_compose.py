"""docker-compose.yml, without an engine: its form, its commands, its settings, its versions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agents.settings import OrderSettings
from streams.local import artifacts
from streams.postgres.cdc.connector import connector_settings, worker_settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
ONCE = {name for name, service in SERVICES.items() if service["restart"] == "on-failure"}

STARTED_BY = {
    "faust -A agents.worker worker": ("demo/workers.py", '"faust", "-A", "agents.worker", "worker"'),
    "python -m agents.gateway": ("tests/contract/test_gateway.py", '"-m", "agents.gateway"'),
    "python -m agents.api": ("tests/integration/test_orders_api_process.py", '"-m", "agents.api"'),
    "steadfaust db migrate": ("tests/integration/test_migrations.py", '"db", "migrate"'),
    "steadfaust outbox relay": ("tests/scenarios/relay_ground.py", '"outbox", "relay"'),
}
"""The commands of our image, and where a test or what it runs starts each as it stands."""


def test_it_has_the_form_of_a_compose_file() -> None:
    schema = json.loads((ROOT / "tests" / "compose" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_it_has_all_that_the_application_stands_on() -> None:
    assert set(SERVICES) == {
        "kafka-1", "kafka-2", "kafka-3", "worker-1", "worker-2", "worker-3",
        "gateway", "s3", "bucket", "postgres", "connect", "migrate", "api", "relay",
    }  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_each_command_of_our_image_is_tested(name: str) -> None:
    command = " ".join(OURS[name]["command"]).removesuffix(" -l warn")
    file, started = STARTED_BY[command]
    assert started in (ROOT / file).read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_each_setting_is_one_that_is_documented(name: str) -> None:
    documented = set(
        re.findall(r"^\| `([A-Z0-9_]+)`", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)
    )
    known = {f"STEADFAUST_{field.upper()}" for field in OrderSettings.model_fields}
    given = {each for each in SERVICES[name].get("environment", {}) if each.startswith("STEADFAUST_")}
    assert {each.removeprefix("STEADFAUST_") for each in given} <= documented
    assert given <= known


def test_connect_is_told_all_that_its_files_ask_for() -> None:
    text = json.dumps([worker_settings(), connector_settings()])
    given = {name for name in SERVICES["connect"]["environment"] if name.startswith("CDC_")}
    assert given == set(re.findall(r"\$\{env:(CDC_\w+)\}", text))


@pytest.mark.parametrize("name", SERVICES)
def test_each_image_is_pinned_limited_and_watched(name: str) -> None:
    service = SERVICES[name]
    image, _, tag = service["image"].rpartition(":")
    assert image
    assert re.search(r"\d+\.\d+|\d{4}-\d\d-\d\d", tag), f"{service['image']} is not pinned"
    assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys()
    assert name in ONCE or "healthcheck" in service


def test_what_keeps_data_has_a_declared_volume() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert {name for name in used if not name.startswith(".")} == set(COMPOSE["volumes"])
    for name in ("kafka-1", "kafka-2", "kafka-3", "postgres", "s3", "gateway", "worker-1"):
        assert SERVICES[name]["volumes"], name


def test_versions_are_those_that_the_tests_run_against() -> None:
    assert SERVICES["kafka-1"]["image"] == f"apache/kafka:{artifacts.KAFKA.name.removeprefix('kafka-')}"
    assert SERVICES["connect"]["image"].endswith(":3.3.1.Final")
    assert any(each.endswith(":3.3.1.Final") for each in artifacts.CONNECT.coordinates)
    assert SERVICES["postgres"]["image"].startswith("postgres:18")


def test_our_image_is_pinned_and_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    built, base = (line for line in lines if line.startswith("FROM "))
    assert re.fullmatch(r"FROM python:\d+\.\d+\.\d+-slim-\w+", base)
    assert built == f"{base} AS build"
    users = [line for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] != "USER root"
    for line in lines:
        if line.startswith("COPY ") and not line.startswith("COPY --from=build"):
            assert all((ROOT / name).exists() for name in line.split()[1:-1]), line
