"""A real worker that may not be a member of its group for a while: it says why, waits, and goes on."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from streams.kafka.topics import KafkaTopics
from streams.local import Stack, declared, local_stack
from streams.ports import TopicSpec
from tests.integration.test_web import end
from tests.integration.worker_process import ROOT, address_of, ask, environment_of, start
from tests.waiting import BOUND, eventually

USER, PASSWORD = "post", "pass-phrase-of-the-post"
SECURITY = "org.apache.kafka.common.security.plain.PlainLoginModule"
BROKER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "listener.name.clear.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clear.plain.sasl.jaas.config": f'{SECURITY} required user_{USER}="{PASSWORD}";',
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A broker that asks for rights, with a listener where the worker has a name of its own."""
    stack = local_stack(
        tmp_path_factory.mktemp("guarded") / "var",
        processes=declared(ROOT / "pyproject.toml"),
        secure={"clear": "SASL_PLAINTEXT"},
        broker_settings=BROKER,
    )
    with stack as running:
        yield running


class Post:
    """A worker, its pages and its log."""

    def __init__(self, app_id: str, bootstrap: str, var: Path, **settings: object) -> None:
        self.environment = environment_of(app_id, bootstrap, var, **settings)
        self.environment["POST_TOPIC"] = f"{app_id}.seen.v1"
        self.log = var / "worker.log"
        self.process = start("tests.integration.post_worker", self.environment, self.log)
        self._slot = var / "workers" / app_id / "slot-0" / "url"

    def health(self) -> dict[str, Any]:
        if not self._slot.exists():
            return {}
        _, _, text = ask(f"{self._slot.read_text()}/health/ready")
        return json.loads(text) if text else {}

    def warns(self, *words: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        return any(all(word in text for word in words) for text in self.health().get("warnings", []))

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        return bool(address_of(self.environment))

    def told(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        found = [json.JSONDecoder().raw_decode(line)[0] for line in lines]
        return [line for line in found if line.get("event") == event]

    def close(self) -> None:
        end(self.process)


def reading(group: str) -> tuple[Any, ...]:
    """The rule by which the worker may not read the group: what makes it finds it again."""
    where = (ResourceType.GROUP, group, ResourcePatternType.LITERAL, f"User:{USER}", "*")
    return *where, AclOperation.READ, AclPermissionType.DENY


def may_not_read(bootstrap: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_acls([AclBinding(*reading(group))]).values():
        made.result(timeout=BOUND)


def may_again(bootstrap: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for gone in admin.delete_acls([AclBindingFilter(*reading(group))]).values():
        assert gone.result(timeout=BOUND)


_BEFORE = pytest.mark.verify("test_a_lost_right_of_the_group_is_waited_for has it of a member")
_RANGE = pytest.mark.verify(
    "test_a_stranger_in_the_group_is_named_and_waited_for has one by another protocol"
)


@pytest.mark.promise("group-trouble")
@pytest.mark.parametrize("when", [pytest.param("before it joins", marks=_BEFORE), "while it is a member"])
def test_a_lost_right_of_the_group_is_waited_for(guarded: Stack, tmp_path: Path, when: str) -> None:
    group = f"guarded-{when.split()[0]}"
    at = f"127.0.0.1:{guarded.state.brokers[0].listeners['clear'].port}"
    login = {"SECURITY_PROTOCOL": "SASL_PLAINTEXT", "SASL_MECHANISM": "PLAIN", "SASL_USERNAME": USER}
    joins_first = when == "while it is a member"
    if not joins_first:
        may_not_read(guarded.bootstrap, group)
    with closing(Post(group, at, tmp_path, SASL_PASSWORD=PASSWORD, **login)) as worker:
        if joins_first:
            eventually(worker.is_ready, f"it is a member; see {worker.log}")
            may_not_read(guarded.bootstrap, group)
        eventually(
            lambda: worker.warns(f"may not read group {group}", "grant READ"), f"it says so; {worker.log}"
        )
        may_again(guarded.bootstrap, group)
        eventually(worker.is_ready, f"it is a member again; see {worker.log}")
        eventually(lambda: not worker.warns("may not read group"), f"no warning is left; {worker.log}")
        assert len(worker.told("membership_waits")) == 1
        end(worker.process)
        assert worker.process.returncode == 0


@contextmanager
def stranger(bootstrap: str, group: str, topic: str, **settings: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "client.id": "the-stranger", **settings}
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


@pytest.mark.promise("group-trouble")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"group.protocol": "consumer"}, id="protocol consumer"),
        pytest.param({"partition.assignment.strategy": "range"}, id="another assignor", marks=_RANGE),
    ],
)
async def test_a_stranger_in_the_group_is_named_and_waited_for(
    kafka: Stack, tmp_path: Path, settings: dict[str, str]
) -> None:
    group = f"strange-{settings.get('group.protocol', 'range')}"
    topic = f"{group}.topic"
    async with KafkaTopics(kafka.bootstrap) as topics:
        await topics.create([TopicSpec(topic, 1, 1)])
    await asyncio.to_thread(meet, kafka.bootstrap, tmp_path, group, topic, settings)


def meet(bootstrap: str, var: Path, group: str, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with ExitStack() as left:
        with stranger(bootstrap, group, topic, **settings) as consumer:

            def is_in() -> bool:
                consumer.poll(0.1)
                (found,) = admin.describe_consumer_groups([group]).values()
                try:
                    return bool(found.result(timeout=BOUND).members)
                except KafkaException:  # there is no such group yet
                    return False

            eventually(is_in, "the stranger is in the group")
            worker = left.enter_context(closing(Post(group, bootstrap, var)))

            def says() -> bool:
                consumer.poll(0.1)  # it stays a member
                return worker.warns("the-stranger at 127.0.0.1", next(iter(settings.values())), "Stop them")

            eventually(says, f"who is in the group; see {worker.log}")
        eventually(worker.is_ready, f"it is a member; see {worker.log}")
        with stranger(bootstrap, group, topic, **settings) as consumer:  # now this one is not let in
            for _ in range(30):
                consumer.poll(0.1)
            assert worker.is_ready()
