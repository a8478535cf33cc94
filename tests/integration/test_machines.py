"""Workers on two machines: network namespaces with an address each, on one broker."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from streams.local import local_stack
from tests.integration.stacks import steadfaust
from tests.integration.test_web import KEYS, TOPIC, end, produce
from tests.integration.worker_process import ask, environment_of, start
from tests.kafka_admin import administering
from tests.waiting import BOUND, eventually

TOKEN = "the-token-of-all-its-workers"
HERE, NEAR, FAR = "10.77.0.1", "10.77.0.2", "10.77.0.3"
PORT = 6066


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=BOUND)


def can_make_namespaces() -> bool:
    """It takes root, and a kernel that lets it."""
    name = f"sf{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@dataclass
class Network:
    """Namespaces on a bridge, which is this machine's way to them."""

    bridge: str = field(default_factory=lambda: f"sfb{os.getpid()}")
    names: dict[str, str] = field(default_factory=dict)

    def open(self, left: ExitStack) -> None:
        ip("link", "add", self.bridge, "type", "bridge")
        left.callback(ip, "link", "del", self.bridge)
        ip("address", "add", f"{HERE}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for number, address in enumerate((NEAR, FAR)):
            name, outside = f"sf{os.getpid()}-{number}", f"sfv{os.getpid()}{number}"
            ip("netns", "add", name)
            left.callback(ip, "netns", "del", name)
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", outside, "master", self.bridge, "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            self.names[address] = name


def free(address: str) -> int:
    with socket.create_server((address, 0)) as found:
        port: int = found.getsockname()[1]
        return port


def reachable_broker(clients: int) -> dict[str, str]:
    controller, network = free("127.0.0.1"), free(HERE)
    listeners = {"CLIENTS": f"127.0.0.1:{clients}", "NETWORK": f"{HERE}:{network}"}
    return {
        "listeners": address_list(listeners | {"CONTROLLER": f"127.0.0.1:{controller}"}),
        "advertised.listeners": address_list(listeners),
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,NETWORK:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def address_list(listeners: dict[str, str]) -> str:
    return ",".join(f"{name}://{address}" for name, address in listeners.items())


@dataclass
class Machines:
    """Two of them, each with a worker in its slot 0; this machine is a third one."""

    bootstrap: str
    var: Path

    def ask(self, address: str, path: str, token: str = TOKEN) -> tuple[int, str]:
        """Status and body."""
        status, _, body = ask(f"http://{address}:{PORT}{path}", token)
        return status, body

    def lanes(self, address: str) -> int:
        status, body = self.ask(address, "/api/worker")
        return [lane["state"] for lane in json.loads(body)["lanes"]].count("open") if status == 200 else 0

    def counted(self, table: str) -> int:
        """Rows of a table, of all lanes, as the one says that knows of fewer."""
        pages = [self.ask(at, f"/api/tables/{table}?limit=500")[1] for at in (NEAR, FAR)]
        return min(len(json.loads(page or "{}").get("rows", [])) for page in pages)

    def steadfaust(self, *arguments: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        """A command of an operator who sits elsewhere."""
        elsewhere = {"STEADFAUST_VAR": str(self.var), "STEADFAUST_WEB_TOKEN": token}
        return steadfaust(*arguments, "--worker", f"http://{NEAR}:{PORT}", **elsewhere)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if not can_make_namespaces():
        pytest.skip("network namespaces take root, and a kernel that lets it")
    var = tmp_path_factory.mktemp("machines")
    with ExitStack() as left:
        network = Network()
        network.open(left)
        clients = free("127.0.0.1")
        settings = reachable_broker(clients)
        stack = left.enter_context(local_stack(var / "stack", port=clients, broker_settings=settings))
        bootstrap = settings["advertised.listeners"].rpartition("://")[2]
        for address, told in ((NEAR, "auto"), (FAR, FAR)):
            left.callback(end, worker(network.names[address], bootstrap, var / address, told))
        found = Machines(stack.bootstrap, var)
        eventually(lambda: found.lanes(NEAR) == found.lanes(FAR) == 2, f"lanes shared; logs are in {var}")
        asyncio.run(produce(stack.bootstrap))
        eventually(lambda: found.counted("parcels") == len(KEYS), f"a row for each; logs are in {var}")
        yield found


def worker(namespace: str, bootstrap: str, var: Path, told: str) -> subprocess.Popen[bytes]:
    """One on a machine of its own: with its own files, and of the same name as the other."""
    var.mkdir()
    web = {"WEB_PORT": PORT, "WEB_HOST": told, "WEB_TOKEN": TOKEN}
    environment = environment_of("web", bootstrap, var, PARTITIONS=4, LANES=4, **web)
    within = ("ip", "netns", "exec", namespace)
    return start("tests.integration.post_worker", environment, var / "worker.log", before=within)


async def poison(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for key in KEYS:
            headers = [("ce_id", f"poison-{key}".encode())]
            await producer.send_and_wait(TOPIC, b"no parcel", key=key.encode(), headers=headers)


def letters(machines: Machines) -> int:
    """Dead ones, of the lanes of both."""
    listed = machines.steadfaust("dlq", "list", "--where", "state=dead", "--limit", "1000", "--json")
    assert listed.returncode in (0, 3), listed.stderr  # 3: there are none
    return len(listed.stdout.splitlines())


def test_every_key_is_found_on_either_machine(machines: Machines) -> None:
    owners = set()
    for key in KEYS:
        answers = [machines.ask(at, f"/api/tables/parcels/rows?key={key}") for at in (NEAR, FAR)]
        assert [status for status, _ in answers] == [200, 200], answers
        first, second = (json.loads(body) for _, body in answers)
        assert first == second
        owners.add(first["owner"])
    # One was told its address, and one has found it.
    assert owners == {f"http://{NEAR}:{PORT}", f"http://{FAR}:{PORT}"}


@pytest.mark.parametrize("token", ["", TOKEN[:-1], f"{TOKEN}x"])
def test_whoever_has_no_token_is_told_nothing_else(machines: Machines, token: str) -> None:
    for path in ("/api/worker", f"/api/tables/parcels/rows?key={KEYS[0]}", "/", "/metrics"):
        status, body = machines.ask(FAR, path, token)
        assert status == 401
        assert "STEADFAUST_WEB_TOKEN" in body
        assert "parcel-" not in body
        assert TOKEN not in body
    assert machines.ask(FAR, "/health/ready", token)[0] == 200


def test_an_operators_job_goes_through_lanes_of_both(machines: Machines) -> None:
    asyncio.run(poison(machines.bootstrap))
    eventually(lambda: letters(machines) == len(KEYS), "every poison is a letter", every=0.5)
    refused = machines.steadfaust("dlq", "list", token="a-token-of-somebody-else")
    assert refused.returncode == 1
    assert "STEADFAUST_WEB_TOKEN" in refused.stderr
    discarded = machines.steadfaust(
        "dlq", "discard", "--where", f"topic={TOPIC}", "--why", "no parcels", "--yes"
    )
    assert discarded.returncode == 0, discarded.stderr

    eventually(lambda: letters(machines) == 0, "all are discarded", every=0.5)


def test_two_machines_of_one_name_are_different_members(machines: Machines) -> None:
    async def members() -> set[str]:
        async with administering(machines.bootstrap) as admin:
            (answer,) = await admin.describe_consumer_groups(["web"])
            # What Kafka makes of a static id has a part of its own behind it.
            return {member[0].rpartition("-slot-0-")[0] for member in answer.groups[0][5]}

    assert len(asyncio.run(members())) == 2
    places = {(machines.var / at / "workers" / "web" / "place").read_text() for at in (NEAR, FAR)}
    assert len(places) == 2
