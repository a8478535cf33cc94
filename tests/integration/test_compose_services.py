"""docker-compose.yml with deploy/compose.tls.yml: each command of our image and its health check, run as
written against a broker that has the file's settings for TLS and users.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from streams.local import Stack, local_stack
from streams.settings import LOCAL_BUCKET, LOCAL_KEYS
from tests.integration.worker_process import ask
from tests.unit.test_compose import SECURED
from tests.waiting import BOUND, eventually

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: The ports of the health checks, and the settings that move them.
PORTS = {
    "gateway": (8090, "PORT"),
    "relay": (6160, "PORT"),
    "api": (8080, "PORT"),
    "worker-1": (6066, "STEADFAUST_WEB_PORT"),
}


def documented() -> tuple[list[str], str]:
    """The command of docs/deploy.md that puts stock on the shelves, and the order that it places then."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    (delivery,) = re.findall(r"^docker compose exec worker-1 (python .+)$", page, re.MULTILINE)
    (order,) = re.findall(r"^ +-d '(\{.+\})'$", page, re.MULTILINE)
    return delivery.split(), order


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def broker_settings(secrets: Path) -> dict[str, str]:
    """The broker's settings for TLS, as its image makes them of the environment; for a listener `secure`
    beside the one of the local stack.
    """
    environment = SECURED["services"]["kafka-1"]["environment"]
    names = {"SSL_", "SASL_", "CONFIG_PROVIDERS", "LISTENER_NAME_"}
    found = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value.replace("$$", "$")
        for name, value in environment.items()
        if any(name.startswith(f"KAFKA_{each}") for each in names)
    }
    text = json.dumps(found).replace("listener.name.clients", "listener.name.secure")
    text = text.replace("/run/secrets/broker.pem", f"{secrets}/kafka-1.pem").replace(
        "/run/secrets", str(secrets)
    )
    settings: dict[str, str] = json.loads(text)
    protocols = environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].replace("CLIENTS:", "SECURE:")
    return settings | {"listener.security.protocol.map": f"{protocols},CLIENTS:PLAINTEXT"}


@dataclass
class Composed:
    kafka: Stack
    ground: Stack
    folder: Path
    ports: dict[str, int]

    def here(self, service: str, text: str) -> str:
        """A value or an argument of the file, with this machine's addresses, ports and directories."""
        broker = self.kafka.state.brokers[0].listeners["secure"].port
        text = re.sub(r"(kafka-\d:9092,?)+", f"127.0.0.1:{broker}", text)
        text = text.replace("postgresql://steadfaust@postgres:5432/orders", self.ground.url("postgres"))
        text = text.replace("http://s3:9000", self.ground.url("s3"))
        text = text.replace("gateway:8090", f"127.0.0.1:{self.ports['gateway']}")
        text = text.replace("/run/secrets", str(self.folder / "secrets"))
        if service in PORTS:
            text = text.replace(f":{PORTS[service][0]}/", f":{self.ports[service]}/")
        return text

    def run(self, service: str, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        environment = {
            name: self.here(service, str(value))
            for name, value in (SECURED["services"][service].get("environment") or {}).items()
        }
        environment |= {"STEADFAUST_VAR": str(self.folder / service), "PYTHONPATH": str(ROOT)}
        if "STEADFAUST_S3_ACCESS_KEY" in environment:
            environment["STEADFAUST_S3_ACCESS_KEY"] = LOCAL_KEYS[0]
        if "STEADFAUST_OUTBOX" in environment:
            environment["STEADFAUST_OUTBOX"] = "poll"
        if service in PORTS:
            environment[PORTS[service][1]] = str(self.ports[service])
        environment["PATH"] = f"{BIN}:{os.environ['PATH']}"
        program = shutil.which(command[0], path=environment["PATH"])
        assert program, command
        with log.open("ab") as output:
            return subprocess.Popen(
                [program, *(self.here(service, each) for each in command[1:])],
                cwd=ROOT, env=environment, stdout=output, stderr=output,
            )  # fmt: skip

    def is_healthy(self, service: str) -> bool:
        test = SECURED["services"][service]["healthcheck"]["test"]
        assert test[0] == "CMD"
        return self.run(service, test[1:], self.folder / "health.log").wait(BOUND) == 0


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    (tmp_path / "ops").mkdir()
    script = shutil.copy(ROOT / "ops" / "make-secrets.sh", tmp_path / "ops")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "s3-key").write_text(LOCAL_KEYS[1])  # of the local stack's store
    subprocess.run([script], check=True, timeout=BOUND)
    with (
        local_stack(
            tmp_path / "kafka", secure={"secure": "SASL_SSL"}, broker_settings=broker_settings(secrets)
        ) as kafka,
        local_stack(tmp_path / "ground", brokers=0, databases=["orders"], buckets=[LOCAL_BUCKET]) as ground,
    ):
        yield Composed(kafka, ground, tmp_path, {name: free_port() for name in PORTS})


@pytest.mark.verify(
    "forty seconds; tests/unit/test_compose.py holds the file to its form and to the settings"
)
def test_each_service_starts_as_written_is_healthy_and_ends(composed: Composed) -> None:
    services = SECURED["services"]
    log = composed.folder / "migrate.log"
    assert composed.run("migrate", services["migrate"]["command"], log).wait(BOUND) == 0, log.read_text()
    with ExitStack() as left:
        started = {}
        for name in ("gateway", "worker-1", "relay", "api"):
            log = composed.folder / f"{name}.log"
            process = started[name] = composed.run(name, services[name]["command"], log)
            left.callback(process.kill)
            eventually(
                lambda: composed.is_healthy(name) or process.poll() is not None,  # noqa: B023 - ends before the next
                f"{name} is healthy; see {log}",
                every=0.5,
            )
            assert process.poll() is None, log.read_text()
        api = f"http://127.0.0.1:{composed.ports['api']}/orders"
        headers = {"Content-Type": "application/json", "Idempotency-Key": "k-1"}
        delivery, body = documented()
        delivered = composed.run("worker-1", delivery, composed.folder / "delivery.log")
        assert delivered.wait(BOUND) == 0, (composed.folder / "delivery.log").read_text()
        with urlopen(Request(api, body.encode(), headers), timeout=BOUND) as answer:
            order: dict[str, Any] = json.load(answer)

        def ended() -> str:
            status: str = json.loads(ask(f"{api}/{order['order_id']}")[2])["status"]
            return status if status != "pending" else ""

        eventually(ended, f"the order has its end; logs are in {composed.folder}", every=0.5)
        assert ended() == "confirmed"
        for name, process in started.items():
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND) == 0, (composed.folder / f"{name}.log").read_text()
