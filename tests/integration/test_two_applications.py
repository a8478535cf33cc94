"""Applications that meet in topics: whose they are, what a refused start leaves, who may start first."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from streams.engine.life.positions.declared import BY_BROKER
from streams.errors import PermanentError, TopicMismatch
from streams.host.dead_letter_writer import DeadLetterWriter
from streams.host.resharding import Resharding
from streams.host.topics import ensure_topics
from streams.kafka.records.batches import Plain
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.model.application import Application, LaneOptions
from streams.model.choreography import choreography, on
from streams.model.codecs import json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.message import Message
from streams.model.outcome import Outcome, outcome
from streams.ports import STAMPED, TopicSpec
from tests.relays import relayed

_numbers = count(time.time_ns())


class Ground:
    """Two messages: Asked is sent by some client, and its handler may send Told."""

    def __init__(self, stack: Stack) -> None:
        self.bootstrap = stack.bootstrap
        self.name = f"two{next(_numbers)}"

        class Asked(Message, frozen=True):
            TOPIC = f"{self.name}.asked.v1"
            name: str

            @property
            def key(self) -> str:
                return self.name

        class Told(Asked, frozen=True):
            TOPIC = f"{self.name}.told.v1"

        self.asked, self.told = Asked, Told

    def app(self, name: str, takes: Any, *sends: Any, partitions: int = 2) -> Application:
        service = Service(name)

        @service.handler(sends=sends)
        def take(message: takes) -> Outcome:
            return outcome()

        layout = Layout(f"{self.name}-{name}", partitions, 1)
        return Application(layout, choreography(on(takes, take)), json_without_schema)

    async def start(self, *apps: Application) -> None:
        for app in apps:
            await ensure_topics(app, self.bootstrap, replication=1)

    async def make(self, topic: str, partitions: int = 2, **config: str) -> None:
        async with KafkaTopics(self.bootstrap) as topics:
            await topics.create([TopicSpec(topic, partitions, 1, config)])

    def topics(self) -> set[str]:
        """Those of this test that are there."""
        found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=30).topics
        return {topic.removeprefix(self.name) for topic in found if topic.startswith(self.name)}

    def beside(self, *endings: str) -> set[str]:
        return {topic for topic in self.topics() if topic.endswith(endings)}


@pytest.fixture
def ground(kafka: Stack) -> Ground:
    return Ground(kafka)


@pytest.mark.promise("separate-dead-letters")
async def test_two_readers_of_a_strangers_topic_share_no_dead_letters(ground: Ground) -> None:
    await ground.make(ground.asked.TOPIC, **{STAMPED: BY_BROKER})
    one, other = ground.app("one", ground.asked), ground.app("other", ground.asked)
    await ground.start(one, other)
    names = {app.routes[ground.asked.TOPIC].dead_letters.removeprefix(ground.name) for app in (one, other)}
    assert names == {f"-{name}-{ground.name}.asked.v1.dlq" for name in ("one", "other")}
    assert ground.beside(".dlq") == names
    assert not [topic for topic in ground.beside(".retry-1") if topic.startswith(".")]
    again = ground.app("one", ground.asked)
    await ground.start(again)
    assert again.routes[ground.asked.TOPIC].retries == one.routes[ground.asked.TOPIC].retries


@pytest.mark.promise("separate-dead-letters")
async def test_beside_topics_of_its_own_an_application_keeps_their_names(ground: Ground) -> None:
    owner = ground.app("owner", ground.asked)
    await ground.start(
        owner, again := ground.app("owner", ground.asked), guest := ground.app("guest", ground.asked)
    )
    topic = ground.asked.TOPIC
    assert owner.routes[topic].dead_letters == again.routes[topic].dead_letters == f"{topic}.dlq"
    assert guest.routes[topic].dead_letters == f"{ground.name}-guest-{topic}.dlq"
    assert guest.routes[topic].retries[0] == f"{ground.name}-guest-{topic}.retry-1"


async def as_an_earlier_version(ground: Ground, app: Application) -> None:
    """Its topics are there but for the ones that it did not have, and it has handled something."""
    await ground.start(app)
    async with KafkaTopics(ground.bootstrap) as topics:
        (marker,) = app.repartitions
        await topics._admin.delete_topics([marker])
    commit(ground, app.layout.app_id)


def commit(ground: Ground, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": ground.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(ground.asked.TOPIC, 0, 0)], asynchronous=False)
    consumer.close()


@pytest.mark.promise("separate-dead-letters")
async def test_what_an_earlier_version_has_made_stays_its_own(ground: Ground) -> None:
    before = ground.app("owner", ground.asked)
    await as_an_earlier_version(ground, before)
    await ground.start(after := ground.app("owner", ground.asked))
    assert after.routes[ground.asked.TOPIC].dead_letters == f"{ground.asked.TOPIC}.dlq"
    assert (after.others, before.others) == (frozenset(), frozenset())


@pytest.mark.promise("separate-dead-letters")
async def test_former_dead_letters_beside_a_strangers_topic_stay_known(ground: Ground) -> None:
    topic = ground.asked.TOPIC
    await ground.make(topic, **{STAMPED: BY_BROKER})
    await ground.make(f"{topic}.dlq", 1)  # of an earlier version, which did not ask whose the topic is
    await ground.start(app := ground.app("guest", ground.asked))
    assert app.routes[topic].dead_letters != f"{topic}.dlq"
    assert app.former == {f"{topic}.dlq": topic}


@pytest.mark.promise("separate-dead-letters", "a group beside lanes")
async def test_a_group_shares_no_dead_letters_of_a_strangers_topic(ground: Ground) -> None:
    for topic in (ground.asked.TOPIC, ground.told.TOPIC):
        await ground.make(topic)
    writer = DeadLetterWriter(
        ground.bootstrap,
        "readers",
        LaneOptions(),
        app_id=f"{ground.name}-one",
        own=[ground.told.TOPIC],
    )
    for topic in (ground.asked.TOPIC, ground.told.TOPIC):
        await writer.write([(Plain(topic, 0, 7, 0, b"k", b"?", ()), PermanentError("unreadable"))])
    beside = {f"-one-{ground.name}.asked.v1.dlq", ".told.v1.dlq"}
    assert ground.beside(".dlq") == beside
    for topic in beside:
        (letter,) = await relayed(ground.bootstrap, ground.name + topic)
        assert letter.value == b"?"


@pytest.mark.promise("separate-dead-letters")
async def test_a_reshard_leaves_topics_to_whom_they_belong(ground: Ground) -> None:
    """A guest's copy has positions, too, in a topic with all that an application declares."""
    topic = ground.asked.TOPIC
    await ground.start(ground.app("owner", ground.asked), ground.app("guest", ground.asked))
    for name in ("owner", "guest"):
        old = Layout(f"{ground.name}-{name}", 2, 1)
        new = replace(old, app_id=f"{old.app_id}2", partitions=4)
        run = Resharding(
            ground.bootstrap, old, new, [topic], [topic], max_record=LaneOptions().max_message_bytes
        )
        await run.run(lambda _: None)
        commit(ground, new.app_id)
    resharded = [ground.app(f"{name}2", ground.asked, partitions=4) for name in ("owner", "guest")]
    await ground.start(*resharded)
    names = [app.routes[topic].dead_letters for app in resharded]
    assert names == [f"{topic}.dlq", f"{ground.name}-guest2-{topic}.dlq"]


def leftovers(ground: Ground) -> set[str]:
    return {topic for topic in ground.topics() if not topic.endswith("asked.v1")}


@pytest.mark.promise("refused-start")
@pytest.mark.parametrize(
    ("made", "partitions", "why"),
    [
        ({STAMPED: BY_BROKER}, 3, "has 3 partitions, and the application is to start with 2. Set"),
        ({STAMPED: BY_BROKER}, 1, "has 1 partitions, and the application is to start with 2. Set"),
        ({STAMPED: "CreateTime"}, 2, "message.timestamp.type=CreateTime"),
        ({STAMPED: BY_BROKER, "cleanup.policy": "compact"}, 2, "cleanup.policy=compact"),
        ({STAMPED: BY_BROKER, "retention.ms": "1000"}, 2, "retention.ms=1000"),
    ],
    ids=["more partitions", "fewer", "stamps", "policy", "retention"],
)
async def test_a_refused_start_creates_nothing(
    ground: Ground, made: dict[str, str], partitions: int, why: str
) -> None:
    await ground.make(ground.asked.TOPIC, partitions, **made)
    with pytest.raises(TopicMismatch, match=why):
        await ground.start(ground.app("one", ground.asked, ground.told))
    assert leftovers(ground) == set()


@pytest.mark.promise("refused-start")
async def test_a_start_that_the_cluster_would_refuse_creates_nothing(ground: Ground) -> None:
    """One broker has no place for three replicas."""
    with pytest.raises(TopicMismatch, match="the cluster refused to create"):
        await ensure_topics(ground.app("one", ground.asked), ground.bootstrap, replication=3)
    assert ground.topics() == set()


async def test_another_number_of_partitions_can_be_tried_after_a_refusal(ground: Ground) -> None:
    await ground.make(ground.asked.TOPIC, 3, **{STAMPED: BY_BROKER})
    with pytest.raises(TopicMismatch):
        await ground.start(ground.app("one", ground.asked))
    await ground.start(ground.app("one", ground.asked, partitions=3))


@pytest.mark.promise("refused-start")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the sender first", "the reader first"])
async def test_two_applications_start_in_either_order(ground: Ground, order: Sequence[int]) -> None:
    apps = ground.app("sender", ground.asked, ground.told), ground.app("reader", ground.told)
    await ground.start(*[apps[number] for number in order])
    await ground.start(*apps)
