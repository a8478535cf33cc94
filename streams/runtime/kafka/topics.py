"""Topics as the cluster has them: described and created."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
from streams.errors import TopicMismatch
from streams.model.application import Application
from streams.model.layout import LANE
from streams.positions.declared import OLDEST, STAMPED, TopicSpec, declare, differences
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


@dataclass(frozen=True, slots=True)
class Description:
    """A topic as it is. `config` has the values in force of the settings in DESCRIBED; `ready` says that
    every partition has a leader.
    """

    partitions: int
    replication: int
    config: Mapping[str, str]
    ready: bool


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

        async def look() -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, str]]]:
            found = await self._partitions(wanted)
            return found, await self._configs(list(found))

        what = f"what {', '.join(wanted)} are like"
        found, configs = await ask(what, look, self._options.metadata_timeout)
        return {
            name: Description(
                partitions=len(partitions),
                replication=min(len(partition["replicas"]) for partition in partitions),
                config=configs[name],
                ready=_led(partitions),
            )
            for name, partitions in found.items()
            if name in configs
        }

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

    async def _create(self, specs: Sequence[TopicSpec]) -> None:
        answer = await self._admin.create_topics(
            [NewTopic(s.name, s.partitions, s.replication, topic_configs=dict(s.config)) for s in specs]
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

    async def _configs(self, names: list[str]) -> dict[str, dict[str, str]]:
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
                configs[name] = {entry[0]: entry[1] for entry in entries}
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
) -> None:
    """Create the application's topics, or those named, where they are missing, and check those that exist.

    `replication` 0 means what the application was first started with; then three, or as many as there are
    brokers. Raises TopicMismatch naming every difference, or ClusterUnavailable.
    """
    async with KafkaTopics(bootstrap, options) as topics:
        first = (await topics.describe([app.layout.announcements])).get(app.layout.announcements)
        # Not by the brokers that happen to be up: one that is down must not lower it.
        brokers = max(await topics.brokers(), len(str(bootstrap).split(",")))
        factor = replication or (first.replication if first else min(3, brokers))
        declared = declare(app, replication=factor)
        specs = {spec.name: spec for spec in declared if names is None or spec.name in names}
        existing = await topics.describe(specs)
        if names is None and app.layout.changelog(LANE) not in existing:
            _require_partitions(specs, existing)
        await topics.create([spec for name, spec in specs.items() if name not in existing])
        found = existing | await topics.describe(specs.keys() - existing.keys())
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
    more = {
        name: actual.partitions
        for name, actual in sorted(existing.items())
        if actual.partitions > specs[name].partitions and specs[name].outside
    }
    if more:
        found = ", ".join(f"{name} has {number} partitions" for name, number in more.items())
        wanted = specs[next(iter(more))].partitions
        raise TopicMismatch(
            f"{found}, and the application is to start with {wanted}. Set STEADFAUST_PARTITIONS to theirs:"
            " it cannot be changed after the first start"
        )
