"""The brokers of a run: who leads what, who is in sync, and signals to their processes."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.metadata import MetadataRequest

from chaos.rig.waiting import ChaosFailed, until_answered
from streams.host.client import partitions_of
from streams.kafka.cluster import KafkaCluster
from streams.local import Stack
from streams.local.loopback import HOST
from streams.model.layout import Layout
from streams.ports import TP

_REQUEST_TIMEOUT_MS = 3000
_LOOKUP_WITHIN = 20.0


class BrokerAdmin:
    """Sends requests to each broker by itself, so that one that is away holds up no other.

    Attributes:
        layout: the application's, of now.
    """

    def __init__(self, stack: Stack, layout: Layout) -> None:
        self._stack = stack
        self.layout = layout

    @property
    def numbers(self) -> list[int]:
        """Of all."""
        return [each.id for each in self._stack.state.brokers]

    def pid(self, broker: int) -> int:
        """Of the process that is this broker now."""
        return next(each.pid for each in self._stack.state.brokers if each.id == broker)

    def signal(self, broker: int, number: signal.Signals) -> None:
        """Send its process a signal."""
        self._stack.signal_broker(broker, number)

    async def until_replaced(self, broker: int, pid: int, *, within: float) -> None:
        """Wait until the process with this pid has ended and another is the broker. Raises ChaosFailed."""

        async def replaced() -> bool:
            return not psutil.pid_exists(pid) and self.pid(broker) != pid

        await until_answered(replaced, f"broker {broker} (pid {pid}) is started again", within=within)

    async def until_out_of_sync(self, broker: int, *, within: float) -> int:
        """Wait until partitions do without this replica; returns how many. Raises ChaosFailed."""
        other = next(each for each in self.numbers if each != broker)
        without = 0

        async def lacking() -> bool:
            nonlocal without
            without = sum(broker not in isr for isr in await self._replicas_in_sync(other))
            return without > 0

        await until_answered(lacking, f"replicas of broker {broker} are out of sync", within=within)
        return without

    async def until_in_sync(self, *, within: float) -> None:
        """Wait until every broker says that every partition has all replicas in sync. Raises ChaosFailed."""

        async def whole() -> bool:
            for broker in self.numbers:
                replicas = await self._replicas_in_sync(broker)
                if any(len(isr) < len(self.numbers) for isr in replicas):
                    return False
            return True

        await until_answered(whole, "all replicas are in sync", within=within)

    async def until_coordinates(self, lane: int | None, *, unless: int = 0, within: float) -> int:
        """Wait until a broker, which is not `unless`, coordinates the group, or this lane's transactions.

        Returns which. Raises ChaosFailed.
        """
        found = 0

        async def coordinates() -> bool:
            nonlocal found
            found = await self._coordinator(lane, next(each for each in self.numbers if each != unless))
            return found not in (-1, unless)

        of = "the group" if lane is None else f"lane {lane}'s transactions"
        await until_answered(coordinates, f"{of} have a coordinator", within=within)
        return found

    async def until_handled(self, topic: str, *, within: float) -> int:
        """Wait until the application has committed positions in a topic; returns in how many partitions."""
        handled = 0

        async def committed() -> bool:
            nonlocal handled
            handled = len(await self._committed([topic]))
            return handled > 0

        await until_answered(committed, f"messages of {topic} are handled", within=within)
        return handled

    async def until_commits(self, lanes: Collection[int], topics: Sequence[str], *, within: float) -> int:
        """Wait until each of these lanes has committed another position in topics that it reads, from now on;
        returns in how many partitions. Raises ChaosFailed.
        """
        before: Mapping[TP, int] = {}
        moved: set[int] = set()

        async def committed() -> bool:
            nonlocal before
            now = await self._committed(topics)
            before = before or now
            moved.update(tp.partition for tp, position in now.items() if position > before.get(tp, 0))
            return set(lanes) <= {self.layout.lane_of(number) for number in moved}

        await until_answered(committed, f"each of the lanes {sorted(lanes)} commits", within=within)
        return sum(self.layout.lane_of(number) in lanes for number in moved)

    async def _committed(self, topics: Sequence[str]) -> Mapping[TP, int]:
        cluster = KafkaCluster(self._stack.bootstrap)
        try:
            partitions = await partitions_of(self._stack.bootstrap, topics)
            return await cluster.committed(self.layout.app_id, partitions)
        finally:
            await cluster.close()

    async def _coordinator(self, lane: int | None, broker: int) -> int:
        async with self._client(broker) as client:
            if lane is None:
                found = await client.coordinator_lookup(CoordinationType.GROUP, self.layout.app_id)
            else:
                transactional_id = self.layout.transactional_id(lane)
                found = await client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)
        return int(found)

    async def _replicas_in_sync(self, broker: int) -> list[set[int]]:
        """Of every partition, as this broker knows it."""
        async with self._client(broker) as client:
            answer = await client.send(broker, MetadataRequest(None))
        topics = answer.to_object()["topics"]
        return [set(partition["isr"]) for topic in topics for partition in topic["partitions"]]

    @asynccontextmanager
    async def _client(self, broker: int) -> AsyncIterator[Any]:
        port = next(each.port for each in self._stack.state.brokers if each.id == broker)
        client = AIOKafkaClient(bootstrap_servers=f"{HOST}:{port}", request_timeout_ms=_REQUEST_TIMEOUT_MS)
        try:
            await client.bootstrap()
            yield client
        finally:
            await client.close()


#: Beside what the application has declared. A segment is compacted once it is no longer written to. As long
#: as deletions are kept, and no shorter: there are hundreds of logs. Their segments do not begin all at once,
#: nor with large indexes, of which the kernel reads ahead (`streams.local.kafka`).
_HASTE: dict[str, str] = {
    "segment.ms": "45000",
    "segment.jitter.ms": "20000",
    "segment.index.bytes": "65536",
    "max.compaction.lag.ms": "45000",
}
_POLICY, _COMPACT = "cleanup.policy", "compact"
#: Where a broker says that a setting comes from: the topic itself.
_OF_TOPIC = 1


async def hasten_compaction(bootstrap: str, app_id: str) -> int:
    """Let the application's compacted topics be compacted at once; returns how many there are.

    Raises ChaosFailed when the cluster does not take the settings.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        names = [name for name in await admin.list_topics() if name.startswith(f"{app_id}-")]
        own = await own_settings(admin, names)
        compacted = {name: config for name, config in own.items() if config.get(_POLICY) == _COMPACT}
        await add_settings(admin, compacted, _HASTE)
        return len(compacted)
    finally:
        await admin.close()


async def add_settings(admin: Any, own: Mapping[str, Mapping[str, str]], added: Mapping[str, str]) -> None:
    """Set something in topics beside their own settings, which the cluster would set back otherwise.

    Raises ChaosFailed when the cluster does not take the settings.
    """
    altered = [
        ConfigResource(ConfigResourceType.TOPIC, name, {**config, **added}) for name, config in own.items()
    ]
    for answer in await admin.alter_configs(altered):
        for code, message, *_ in answer.resources:
            if code:
                raise ChaosFailed(f"{', '.join(own)} cannot be set to {added}: error {code}, {message}")


async def own_settings(admin: Any, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of topics that are not the cluster's defaults."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    return {
        name: {entry[0]: entry[1] for entry in entries if entry[3] == _OF_TOPIC}
        for answer in await admin.describe_configs(resources)
        for _, _, _, name, entries in answer.resources
    }
