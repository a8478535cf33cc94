"""One application of the growth workload on a broker: its topics, what fills them, how far it has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.growth.packing import Packed, Packing, fill, packer
from benchmarks.growth.workload import COUNTS, GROWTH, WORKLOAD, Count, Workload
from benchmarks.kafka import Rate, delete_topics_of
from benchmarks.sections import NotMeasured
from benchmarks.worker_process import BenchmarkWorker
from streams.engine.staging.changes import Writes, pack_ids
from streams.engine.staging.inbox import Inbox, bucket_length, inbox_entry
from streams.host.topics import ensure_topics
from streams.kafka.cluster import KafkaCluster
from streams.model.codecs import encode_row
from streams.model.envelope import ID, SOURCE
from streams.model.layout import INBOX, murmur2
from streams.model.row_keys import row_key
from streams.ports import TP
from streams.settings import Settings
from streams.testing.store import MemoryStores

_CLIENT = b"growth"
_LOOK_EVERY = 0.02
_HANDLED_WITHIN = 300.0
#: Records packed at once before they are sent, which bounds what lies here in memory.
_AT_ONCE = 250_000
#: A record has many ids.
_IDS_AT_ONCE = 500


class GrowthGround:
    """An application with a name of its own; use it `async with`, which deletes its topics at the end."""

    def __init__(
        self,
        bootstrap: str,
        var: Path,
        name: str,
        *,
        partitions: int = 4,
        lanes: int = 4,
        workload: Workload = GROWTH,
        **more: str,
    ) -> None:
        """`more` are further settings of its workers, by their names without the prefix, in capitals."""
        self.bootstrap = bootstrap
        self.var = var
        self.name = name
        self._environment = {
            WORKLOAD: workload.module,
            "STEADFAUST_APP_ID": name,
            "STEADFAUST_BOOTSTRAP": bootstrap,
            "STEADFAUST_PARTITIONS": str(partitions),
            "STEADFAUST_LANES": str(lanes),
            "STEADFAUST_REPLICATION": "1",
            "STEADFAUST_STANDBYS": "0",
            "STEADFAUST_WEB_PORT": "0",
            **{f"STEADFAUST_{setting}": value for setting, value in more.items()},
        }
        settings = Settings(app_id=name, partitions=partitions, lanes=lanes)
        self.layout = settings.layout()
        self.app = workload.application(self.layout, settings.lane_options())
        self.topic = workload.topic(name)
        self.sources = [TP(self.topic, number) for number in range(partitions)]
        self._cluster = KafkaCluster(bootstrap)
        self._workers = 0
        self._events = 0

    async def __aenter__(self) -> Self:
        await ensure_topics(self.app, self.bootstrap, replication=1)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cluster.close()
        for beginning in (f"{self.name}.", f"{self.name}-"):
            await delete_topics_of(self.bootstrap, beginning)

    def worker(self, *, machine: str = "", web: bool = False) -> BenchmarkWorker:
        """A worker process, not started; on another `machine` it finds no store of an earlier one. With `web`
        it serves its pages.
        """
        self._workers += 1
        var = self.var / machine if machine else self.var
        log = self.var / "log" / f"{self.name}-{self._workers}.log"
        environment = {**self._environment, "STEADFAUST_VAR": str(var)}
        return BenchmarkWorker("benchmarks.lane_worker", environment, log, web=web)

    # -- what is there before --------------------------------------------------------------------------

    async def preload_rows(self, number: int) -> None:
        """So many rows in the table's changelog, as if as many keys had had an event each."""
        topic = self.app.tables[COUNTS.name].changelog
        await fill(self.bootstrap, topic, self._rows(number), at_once=_AT_ONCE)

    def _rows(self, number: int) -> Iterator[Packed]:
        value = encode_row(self.app.tables[COUNTS.name].codec, Count(n=1))
        stride = coprime(number)
        for i in range(number):  # in no order, as changelogs are
            key = b"k%d" % (i * stride % number)
            yield self.partition_of(key), row_key(key), value, []

    def partition_of(self, key: bytes) -> int:
        """Where a key belongs."""
        # Not the layout's, which remembers what it has hashed: millions of keys come once each.
        return (murmur2(key) & 0x7FFFFFFF) % self.layout.partitions

    async def preload_ids(self, number: int) -> None:
        """So many ids in the inbox's changelog, none of which an event will have."""
        await fill(self.bootstrap, self.layout.changelog(INBOX), self._ids(number), at_once=_IDS_AT_ONCE)

    def _ids(self, number: int) -> Iterator[Packed]:
        (handler,) = self.app.routes[self.topic].handlers
        retention = self.app.lane_options.inbox_retention
        inbox = Inbox(MemoryStores().open(0), Writes(bucket_length(retention)), retention)
        _, value = inbox_entry(b"", int(time.time() * 1000), b"")
        for partition in range(self.layout.partitions):
            mine = range(partition, number, self.layout.partitions)
            entries = ((inbox.key(handler.name_bytes, _CLIENT, b"before-%d" % i), value) for i in mine)
            for record in pack_ids(entries):
                yield partition, b"", record, []

    # -- what happens ----------------------------------------------------------------------------------

    def events(self, number: int, *, keys: int) -> Iterator[Packed]:
        """Events with new ids, in strides over all keys."""
        stride = coprime(keys)
        for i in range(self._events, self._events + number):
            key = b"k%d" % (i * stride % keys)
            value = b'{"k":"%s","i":%d}' % (key, i)
            yield self.partition_of(key), key, value, [(ID, b"%d" % i), (SOURCE, _CLIENT)]
        self._events += number

    async def send(self, events: Iterable[Packed]) -> int:
        """Put events into the topic; returns how many."""
        return await fill(self.bootstrap, self.topic, events, at_once=_AT_ONCE)

    async def burst(self, events: Iterable[Packed], *workers: BenchmarkWorker) -> Rate:
        """What workers make of events that all come at once, timed from when they are sent to when the last
        is committed: a lane handles thousands ahead of what it commits, so parts of a burst tell nothing.

        Raises NotMeasured when not all are handled.
        """
        async with packer(self.bootstrap) as producer:
            packing = Packing(self.topic)
            packing.add(producer, events)
            target = await self.handled() + packing.records
            busy, began = _cpu(workers), time.perf_counter()
            await packing.send(producer)
        await self.until_handled(target, *workers)
        seconds, cpu = time.perf_counter() - began, _cpu(workers) - busy
        return Rate(packing.records / seconds, cpu / packing.records * 100_000)

    async def until_handled(self, target: int, *workers: BenchmarkWorker) -> None:
        """Wait until so many events are handled in all. Raises NotMeasured when they are not."""
        deadline = time.monotonic() + _HANDLED_WITHIN
        while (handled := await self.handled()) < target:
            for worker in workers:
                worker.must_run(f"{target:,} events are handled")
            if time.monotonic() > deadline:
                raise NotMeasured(
                    f"{handled:,} of {target:,} events were handled within {_HANDLED_WITHIN:g} s:"
                    f" see {', '.join(str(worker.log) for worker in workers)}"
                )
            await asyncio.sleep(_LOOK_EVERY)

    async def first_handled(self, worker: BenchmarkWorker) -> float:
        """Wait until the next event is handled; returns when, on the clock of `time.time`."""
        before = await self.handled()
        await self.until_handled(before + 1, worker)
        return time.time()

    async def handled(self) -> int:
        """Events of which the handling is committed: clients' topics are dense, so positions count them."""
        return sum((await self.positions(self.sources)).values())

    async def ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Where partitions end."""
        return await self._cluster.end_offsets(tps)

    async def positions(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The group's positions; partitions of which nothing is handled are left out."""
        return await self._cluster.committed(self.name, tps)


def _cpu(workers: Iterable[BenchmarkWorker]) -> float:
    return sum(worker.cpu_seconds for worker in workers)


def coprime(keys: int) -> int:
    """A stride that comes to every key before it comes to one again."""
    return next(stride for stride in (7919, 7927, 1) if keys % stride)
