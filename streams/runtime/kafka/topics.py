"""Topics as the cluster has them: described and created."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from streams.brokers import Bootstrap
from streams.engine.life.positions.declared import OLDEST, STAMPED, TopicSpec, declare, differences
from streams.errors import TopicMismatch
from streams.model.application import Application
from streams.model.layout import LANE, dead_letter_topic, retry_topic
from streams.policy.retry import MAX_TIERS
from streams.runtime.kafka.clients import KafkaOptions, ask, close_within

DESCRIBED = (
    "cleanup.policy",
    "min.insync.replicas",
    "max.message.bytes",
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    STAMPED,
    OLDEST,
)
#: The source of a setting that was set for the topic itself, in answers of brokers.
_OF_THE_TOPIC = 1


@dataclass(frozen=True, slots=True)
class Description:
    """A topic as it is. `config` has the values in force of the settings in DESCRIBED, and `own` names those
    that are set for the topic itself; `ready` says that every partition has a leader.
    """

    partitions: int
    replication: int
    config: Mapping[str, str]
    ready: bool
    own: frozenset[str] = frozenset()


class KafkaTopics:
    """Describes and creates topics. Use it as an async context manager, or close it.

    Every method raises ClusterUnavailable when Kafka does not answer within the bound.
    """

    def __init__(self, bootstrap: Bootstrap, options: KafkaOptions | None = None) -> None:
        self._options = options or KafkaOptions()
        self._admin = AIOKafkaAdminClient(**self._options.connection(bootstrap))

    async def __aenter__(self) -> Self:
        try:
            await ask("who its brokers are", self._admin.start, self._options.metadata_timeout)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def describe(self, names: Iterable[str]) -> dict[str, Description]:
        """The topics that exist, by name."""
        wanted = sorted(names)
        if not wanted:
            return {}

        async def look() -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[tuple[Any, ...]]]]:
            found = await self._partitions(wanted)
            return found, await self._configs(list(found))

        what = f"what {', '.join(wanted)} are like"
        found, configs = await ask(what, look, self._options.metadata_timeout)
        return {
            name: Description(
                partitions=len(partitions),
                replication=min(len(partition["replicas"]) for partition in partitions),
                config={entry[0]: entry[1] for entry in configs[name]},
                ready=_led(partitions),
                own=frozenset(entry[0] for entry in configs[name] if entry[3] == _OF_THE_TOPIC),
            )
            for name, partitions in found.items()
            if name in configs
        }

    async def try_out(self, specs: Iterable[TopicSpec]) -> None:
        """Ask whether all of these topics could be created, and create none. Raises TopicMismatch when the
        broker would refuse one, with its reason.
        """
        wanted = list(specs)
        if wanted:
            what = f"whether it would make {', '.join(spec.name for spec in wanted)}"
            bound = self._options.start_timeout
            await ask(what, lambda: self._create(wanted, only_try=True), bound)

    async def handled(self, group: str, topic: str) -> bool:
        """Whether a group has a position in a topic."""

        async def positions() -> bool:
            found = await self._admin.list_consumer_group_offsets(group)
            return any(tp.topic == topic and at.offset >= 0 for tp, at in found.items())

        return await ask(f"the positions of {group}", positions, self._options.metadata_timeout)

    async def create(self, specs: Iterable[TopicSpec]) -> None:
        """Create the topics that do not exist yet, and wait until every one has its leaders.

        An existing topic is left as it is: compare with `describe`. Raises TopicMismatch when the broker
        refuses a topic, with its reason.
        """
        wanted = {spec.name: spec for spec in specs}
        if not wanted:
            return

        async def led() -> None:
            if not await self._ready(wanted):
                raise LeaderNotAvailableError

        names, bound = ", ".join(wanted), self._options.start_timeout
        await ask(f"that it made {names}", lambda: self._create(list(wanted.values())), bound)
        await ask(f"the leaders of {names}", led, bound)

    async def grow(self, names: Iterable[str], partitions: int) -> None:
        """Give topics so many partitions where they have fewer, and wait until every one has its leader."""
        found = await self.describe(names)
        fewer = [name for name, topic in found.items() if topic.partitions < partitions]

        async def led() -> None:
            topics = await self._partitions(fewer)
            if any(len(topics[name]) < partitions or not _led(topics[name]) for name in fewer):
                raise LeaderNotAvailableError

        for (
            name
        ) in fewer:  # one that was given them by an answer that got lost is passed over by the next call
            added = {name: NewPartitions(partitions)}
            what = f"that it gave {name} {partitions} partitions"
            await ask(what, partial(self._admin.create_partitions, added), self._options.start_timeout)
        if fewer:
            await ask(f"the leaders of {', '.join(fewer)}", led, self._options.start_timeout)

    async def _create(self, specs: Sequence[TopicSpec], *, only_try: bool = False) -> None:
        answer = await self._admin.create_topics(
            [
                NewTopic(s.name, s.partitions, s.replication, topic_configs={**s.config, **s.made})
                for s in specs
            ],
            validate_only=only_try,
        )
        for name, code, *reason in answer.topic_errors:
            error = for_code(code)
            if error.retriable:
                raise error(name)
            if code and error is not TopicAlreadyExistsError:
                raise TopicMismatch(f"the cluster refused to create {name}: {error.__name__}, {reason[0]}")

    async def _ready(self, specs: Mapping[str, TopicSpec]) -> bool:
        found = await self._partitions(list(specs))
        return all(found.get(name) and _led(found[name]) for name in specs)

    async def _partitions(self, names: list[str]) -> dict[str, list[dict[str, Any]]]:
        # Not the client's describe_topics: on a broker that creates topics by itself, that would create them.
        answer = await self._admin._send_request(MetadataRequest(names, allow_auto_topic_creation=False))
        found = {}
        for topic in answer.to_object()["topics"]:
            if topic["error_code"] == UnknownTopicOrPartitionError.errno:
                continue
            if topic["error_code"] and not topic["partitions"]:
                raise for_code(topic["error_code"])
            found[topic["topic"]] = topic["partitions"]
        return found

    async def _configs(self, names: list[str]) -> dict[str, list[tuple[Any, ...]]]:
        if not names:
            return {}
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(DESCRIBED)) for name in names
        ]
        configs = {}
        for answer in await self._admin.describe_configs(resources):
            for code, _, _, name, entries in answer.resources:
                if code == UnknownTopicOrPartitionError.errno:
                    continue  # deleted since it was listed
                if code:
                    raise for_code(code)
                configs[name] = entries
        return configs

    async def brokers(self) -> int:
        """How many brokers the cluster has."""
        cluster = await ask("its brokers", self._admin.describe_cluster, self._options.metadata_timeout)
        return len(cluster["brokers"])

    async def close(self) -> None:
        """Let go of the connection."""
        await close_within("the client that describes topics", self._admin.close)


def _led(partitions: Iterable[Mapping[str, Any]]) -> bool:
    return all(partition["leader"] >= 0 and not partition["error_code"] for partition in partitions)


async def ensure_topics(
    app: Application,
    bootstrap: Bootstrap,
    names: Collection[str] | None = None,
    replication: int = 0,
    options: KafkaOptions | None = None,
    before: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Check the application's topics that exist, or those named, and create those that are missing. Nothing
    is created before everything was compared, and the cluster has said that it would create all of it.

    `replication` 0 means what the application was first started with; then three, or as many as there are
    brokers. `before` is called first where the application has announced something. Raises TopicMismatch
    naming every difference, or ClusterUnavailable.
    """
    async with KafkaTopics(bootstrap, options) as topics:
        first = (await topics.describe([app.layout.announcements])).get(app.layout.announcements)
        if first is not None and before is not None:
            await before()
        # Not by the brokers that happen to be up: one that is down must not lower it.
        brokers = max(await topics.brokers(), len(str(bootstrap).split(",")))
        factor = replication or (first.replication if first else min(3, brokers))
        await name_beside(app, topics, factor)
        declared = declare(app, replication=factor)
        specs = {spec.name: spec for spec in declared if names is None or spec.name in names}
        existing = await topics.describe(specs)
        if names is None and app.layout.changelog(LANE) not in existing:
            _require_partitions(specs, existing)
        _require_no_difference(specs, existing)
        missing = [spec for name, spec in specs.items() if name not in existing]
        await topics.try_out(missing)
        for some in _in_order(app, missing):
            await topics.create(some)
        _require_no_difference(specs, await topics.describe(spec.name for spec in missing))


def _require_no_difference(specs: Mapping[str, TopicSpec], found: Mapping[str, Description]) -> None:
    wrong = [
        difference
        for name, actual in sorted(found.items())
        for difference in differences(
            specs[name],
            partitions=actual.partitions,
            replication=actual.replication,
            config=actual.config,
        )
    ]
    if wrong:
        raise TopicMismatch(". ".join(wrong) + ".")


def _require_partitions(specs: Mapping[str, TopicSpec], existing: Mapping[str, Description]) -> None:
    """Before an application's first start its number of partitions can still be chosen: it is to be that of
    the topics that there are. Raises TopicMismatch, before anything is made.
    """
    other = {
        name: actual.partitions
        for name, actual in sorted(existing.items())
        if actual.partitions != specs[name].partitions
    }
    if other:
        found = ", ".join(f"{name} has {number} partitions" for name, number in other.items())
        wanted = specs[next(iter(other))].partitions
        raise TopicMismatch(
            f"{found}, and the application is to start with {wanted}. Set STEADFAUST_PARTITIONS to theirs:"
            " it cannot be changed after the first start"
        )


# -- whose topic one is ------------------------------------------------------------------------------------


async def name_beside(app: Application, topics: KafkaTopics, replication: int) -> None:
    """Tell an application which of the topics that it handles are not its own (docs/adr/0076): retries and
    dead letters of those go to topics with its id, so that two applications never share one.

    A topic that was there before the application is another's. Which it was stays so: at the first start the
    repartition topic of each is created after dead letter topics of others, and before topics of its own.
    """
    layout, sources = app.layout, app.repartitions
    beside = {topic: _names_beside(topic) for topic in sources.values()}
    by_id = {topic: dead_letter_topic(topic, layout.app_id) for topic in sources.values()}
    asked = {
        *sources,
        *sources.values(),
        *by_id.values(),
        *(name for each in beside.values() for name in each),
    }
    found = await topics.describe(asked)
    specs = {spec.name: spec for spec in declare(app, replication=replication)}
    others = set()
    for marker, topic in sources.items():
        if marker in found:
            is_own = by_id[topic] not in found
        elif topic not in found:
            is_own = True
        else:  # an earlier version may have made it, with all that it declares
            made = specs[topic].config.keys() <= found[topic].own and dead_letter_topic(topic) in found
            is_own = made and await topics.handled(layout.app_id, topic)
        if not is_own:
            others.add(topic)
    former = {name: topic for topic in others for name in beside[topic] if name in found}
    app.name_beside(frozenset(others), former)


def _names_beside(topic: str) -> list[str]:
    """The topics of retries and dead letters beside a topic of an application's own."""
    return [dead_letter_topic(topic), *(retry_topic(topic, tier) for tier in range(1, MAX_TIERS + 1))]


def _in_order(app: Application, specs: Iterable[TopicSpec]) -> list[list[TopicSpec]]:
    """What is created first, then, and last, so that a start that is killed or has company in between decides
    nothing else about whose a topic is.
    """
    first = {app.routes[topic].dead_letters for topic in app.others}
    steps: list[list[TopicSpec]] = [[], [], []]
    for spec in specs:
        steps[0 if spec.name in first else 1 if spec.name in app.repartitions else 2].append(spec)
    return steps
