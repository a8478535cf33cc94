"""Topics as the cluster has them: described and created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from streams.kafka.clients import KafkaOptions, ask, close_within
from streams.ports import OLDEST, STAMPED, TopicSpec

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

    async def existing(self, names: Iterable[str]) -> set[str]:
        """Those of the topics that exist. It needs no right but to describe them."""
        wanted = sorted(names)
        if not wanted:
            return set()
        what = f"whether {', '.join(wanted)} exist"
        return set(await ask(what, lambda: self._partitions(wanted), self._options.metadata_timeout))

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
