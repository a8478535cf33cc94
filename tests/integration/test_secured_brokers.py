"""Brokers over TLS and SASL: a real broker with such listeners, and real workers and commands on it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from streams import Message
from streams.brokers import Brokers, Security
from streams.errors import AccessRefused
from streams.host.client import Producer, TopicReader
from streams.host.groups import GroupReader
from streams.kafka.topics import KafkaTopics
from streams.local import Stack, declared, local_stack
from streams.model.codecs import json_without_schema
from streams.ports import TopicSpec
from streams.postgres.outbox import OutboxRow
from streams.postgres.relay.outbox_publisher import KafkaPublisher
from tests.certificates import Authority
from tests.integration.mixed_worker import app
from tests.integration.test_examples_on_servers import run_both
from tests.scenarios.world import LANES, PARTITIONS, World, order
from tests.waiting import BOUND

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
USER, PASSWORD, WRONG = "shop", "pass-phrase-of-the-shop", "not-the-phrase-of-the-shop"
TOPIC = "secured.notes"


class Note(Message, frozen=True, kw_only=True):
    TOPIC = "secured.note.taken.v1"
    about: str

    @property
    def key(self) -> str:
        return self.about


LISTENERS = {
    "secure": "SASL_SSL", "mutual": "SSL", "expired": "SSL", "other-name": "SSL", "clear": "SASL_PLAINTEXT",
}  # fmt: skip


@dataclass
class Secured:
    """A broker with a listener for each case, and the CA that its clients trust."""

    stack: Stack
    authority: Authority
    stranger: Authority

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.stack.state.brokers[0].listeners[listener].port}"

    def environment(self, listener: str = "secure", **other: str) -> dict[str, str]:
        """The settings that go with a listener, but for those that are said otherwise."""
        found = {
            "BOOTSTRAP": self.at(listener),
            "SECURITY_PROTOCOL": LISTENERS[listener],
            "SSL_CA_FILE": self.authority.file,
        }
        if LISTENERS[listener].startswith("SASL"):
            found |= {"SASL_USERNAME": USER, "SASL_PASSWORD": PASSWORD}
        return {f"STEADFAUST_{name}": value for name, value in (found | other).items()}

    def brokers(self, listener: str = "secure", **other: object) -> Brokers:
        found: dict[str, object] = {"protocol": LISTENERS[listener], "ca_file": self.authority.file}
        if LISTENERS[listener].startswith("SASL"):
            found |= {"username": USER, "password": PASSWORD}
        return Brokers(self.at(listener), Security(**(found | other)))  # type: ignore[arg-type]  # by name


def broker_properties(ours: Authority) -> dict[str, str]:
    keys = {
        "secure": ours.signed("secure", "127.0.0.1"),
        "mutual": ours.signed("mutual", "127.0.0.1"),
        "expired": ours.signed("expired", "127.0.0.1", expired=True),
        "other_name": ours.signed("other-name", "kafka.example"),
    }
    found: dict[str, str] = {}
    for name, file in keys.items():
        found[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
        found[f"listener.name.{name}.ssl.keystore.location"] = file
    found["listener.name.mutual.ssl.client.auth"] = "required"
    found["listener.name.mutual.ssl.truststore.type"] = "PEM"
    found["listener.name.mutual.ssl.truststore.location"] = ours.file
    security = "org.apache.kafka.common.security"
    for name in ("secure", "clear"):
        sasl = f"listener.name.{name}."
        found[f"{sasl}sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
        found[f"{sasl}plain.sasl.jaas.config"] = (
            f'{security}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        )
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            found[f"{sasl}{mechanism}.sasl.jaas.config"] = f"{security}.scram.ScramLoginModule required;"
    return found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    ours, stranger = Authority.at(folder / "ours"), Authority.at(folder / "stranger")
    stack = local_stack(
        folder / "var",
        processes=declared(ROOT / "pyproject.toml"),
        secure=LISTENERS,
        broker_settings=broker_properties(ours),
    )
    with stack as running:
        let_in(running.bootstrap)
        asyncio.run(with_topics(running.bootstrap))
        yield Secured(running, ours, stranger)


def let_in(bootstrap: str) -> None:
    """SCRAM's users are the cluster's own: whoever is in already names them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        user = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for told in admin.alter_user_scram_credentials([user]).values():
            told.result(timeout=BOUND)


async def with_topics(bootstrap: str) -> None:
    async with KafkaTopics(bootstrap) as topics:
        await topics.create([TopicSpec(TOPIC, 1, 1), TopicSpec(Note.TOPIC, 1, 1)])


# -- those who are let in ---------------------------------------------------------------------------------


async def reads_nothing(brokers: Brokers) -> None:
    async with TopicReader(brokers, [TOPIC]) as reader:
        assert [record async for record in reader.to_end()] == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["secure", "clear"])
async def test_a_client_is_let_in_by_each_mechanism(secured: Secured, listener: str, mechanism: str) -> None:
    ca = secured.authority.file if listener == "secure" else ""
    await reads_nothing(secured.brokers(listener, mechanism=mechanism, ca_file=ca))


async def test_a_client_is_let_in_by_its_own_certificate(secured: Secured) -> None:
    own = secured.authority.signed("client", "client.example")
    await reads_nothing(secured.brokers("mutual", certificate_file=own))


def test_an_order_is_settled_over_tls_and_sasl_alone(secured: Secured, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    environment = secured.environment(SASL_PASSWORD_FILE=str(secret))
    del environment["STEADFAUST_SASL_PASSWORD"]
    # The one that sends and looks is another: it connects in the clear.
    world = World(secured.stack.bootstrap, secured.stack.url("gateway"), tmp_path, environment=environment)
    with world.closing():
        worker = world.start_worker()
        world.until_shared([worker])
        world.receive_stock()
        ids = world.place("secured", 5)
        world.until_settled(ids)
        world.check()
        listed = command("saga", "list", "--json", var=tmp_path, **environment)
        assert listed.returncode == 0, listed.stderr
        cut = {"STEADFAUST_PARTITIONS": str(PARTITIONS), "STEADFAUST_LANES": str(LANES)}
        positions = command("positions", "list", "--json", var=tmp_path, **environment, **cut)
        assert positions.returncode == 0, positions.stderr
        assert worker.stop() == 0, worker.log.read_text()[-4000:]
        told = worker.log.read_text() + listed.stdout + positions.stdout + positions.stderr
    assert order(0, "secured")[0].order_id in listed.stdout
    assert PASSWORD not in told


@pytest.mark.verify("ten seconds; test_brokers.py holds what Faust is told")
def test_a_plain_agent_gets_in_as_the_lanes_do(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.steadfaust, "bootstrap", secured.stack.bootstrap)
    run_both(secured.stack.bootstrap, tmp_path, **secured.environment(SASL_MECHANISM="PLAIN"))


async def test_clients_relays_and_groups_use_tls_and_sasl(secured: Secured) -> None:
    async with Producer(secured.brokers(), json_without_schema, source="shop") as producer:
        await producer.send(Note(about="first"), message_id="note-1")
    named = ("1.0", "shop", "2026-11-22T12:00:00Z", "note-2", "")
    row = OutboxRow(
        1, 0, "note-2", "note", "second", Note.TOPIC, Note.TOPIC, b"{}", *named, *[None] * 8, 0, 0.0
    )
    publisher = KafkaPublisher(secured.brokers(mechanism="PLAIN"), "secured-announcements")
    try:
        published = await publisher.publish([row])
    finally:
        await publisher.close()
    assert published.written == [row]
    read: list[str] = []
    async with GroupReader(secured.brokers(), "secured-readers", [Note.TOPIC]) as reader:
        while len(read) < 2:
            read += [(record.key or b"").decode() for record in await reader.fetch()]
        await reader.commit()
    assert sorted(read) == ["first", "second"]


# -- those who are not ------------------------------------------------------------------------------------

#: Of each kind the listener, what is said, and what is to be done.
REFUSALS = {
    "a wrong password": ("secure", "not let 'shop' in by SCRAM-SHA-512", "STEADFAUST_SASL_PASSWORD"),
    "an unknown CA": ("secure", "its certificate is not trusted", "STEADFAUST_SSL_CA_FILE"),
    "another name": ("other-name", "its certificate is not for 127.0.0.1", "STEADFAUST_BOOTSTRAP"),
    "an expired certificate": ("expired", "its certificate has expired", "give the broker a new one"),
    "no certificate": ("mutual", "wants a certificate of this client", "STEADFAUST_SSL_CERTIFICATE_FILE"),
}


def refused(secured: Secured, kind: str) -> dict[str, str]:
    """Settings with which nobody is let in."""
    other = {
        "a wrong password": {"SASL_PASSWORD": WRONG},
        "an unknown CA": {"SSL_CA_FILE": secured.stranger.file},
    }
    return secured.environment(REFUSALS[kind][0], **other.get(kind, {}))


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_client_is_told_why_it_is_refused(secured: Secured, kind: str) -> None:
    settings = refused(secured, kind)
    names = {"password": "STEADFAUST_SASL_PASSWORD", "ca_file": "STEADFAUST_SSL_CA_FILE"}
    told = {name: settings[setting] for name, setting in names.items() if setting in settings}
    with pytest.raises(AccessRefused) as error:
        async with TopicReader(secured.brokers(REFUSALS[kind][0], **told), [TOPIC]):
            pass
    says(str(error.value), secured, kind)


@pytest.mark.verify("five workers start; clients and a command are told the same")
def test_workers_end_with_what_is_wrong_and_what_to_do(secured: Secured, tmp_path: Path) -> None:
    world = World(secured.stack.bootstrap, secured.stack.url("gateway"), tmp_path)
    with world.closing():
        workers = {kind: world.start_worker(**refused(secured, kind)) for kind in REFUSALS}
        for kind, worker in workers.items():
            assert worker.process.wait(BOUND) == 1, kind
            (told,) = worker.events("worker_cannot_start")
            says(told["error"], secured, kind)
            assert WRONG not in worker.log.read_text()


_MORE = pytest.mark.verify("two processes start; a command is told the same")
PROGRAMS = {
    "a command": ["steadfaust", "positions", "list"],
    "the relay": ["steadfaust", "outbox", "relay"],
    "the API": ["python", "-m", "agents.api"],
}


@pytest.mark.parametrize(
    "which", ["a command", *(pytest.param(each, marks=_MORE) for each in ("the relay", "the API"))]
)
def test_a_program_that_is_refused_ends(secured: Secured, which: str, tmp_path: Path) -> None:
    environment = refused(secured, "a wrong password")
    nowhere = "postgresql://nobody@127.0.0.1:1/x"
    ended = run(PROGRAMS[which], tmp_path, **environment, STEADFAUST_POSTGRES_URL=nowhere)
    assert ended.returncode == 1
    says(ended.stderr.splitlines()[-1], secured, "a wrong password")
    assert WRONG not in ended.stdout + ended.stderr


def says(told: str, secured: Secured, kind: str) -> None:
    """What, where, and what to do; never the password."""
    listener, what, remedy = REFUSALS[kind]
    assert f"broker {secured.at(listener)}" in told
    assert what in told
    assert remedy in told
    assert PASSWORD not in told
    assert WRONG not in told


def command(*arguments: str, var: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(["steadfaust", *arguments], var, **environment)


def run(program: list[str], var: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / program[0]), *program[1:]],
        env={**os.environ, "STEADFAUST_APP_ID": "scenario", "STEADFAUST_VAR": str(var), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND,
    )
