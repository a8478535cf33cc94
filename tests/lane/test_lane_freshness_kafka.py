"""Deleted rows do not come back, with real compaction and a process that is really stopped."""

import signal
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from lane_checker import check_store
from lane_kafka import KafkaWorld
from lane_workloads import reminding
from lane_worlds import closing
from test_lane_timers import asking_for

from streams.engine.staging.changes import TIMERS
from streams.engine.staging.keys import TIMER
from streams.host.rocksdb.store import RocksStores
from streams.local import local_stack
from streams.model.layout import LANE

pytestmark = pytest.mark.promise("deleted-rows", "a standby stopped by a signal, and real compaction")

RETENTION = 8.0
#: How long compaction may take: the broker looks for work now and then, and a deletion needs two rounds.
COMPACTED = 180.0


def is_of_the_timer(key: bytes) -> bool:
    return key.startswith(TIMER) and key.endswith(b"aalarm")


async def hurry_compaction(bootstrap: str, topic: str) -> None:
    eager = {
        "cleanup.policy": "compact", "min.insync.replicas": "1", "delete.retention.ms": "500",
        "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0001", "max.compaction.lag.ms": "1",
    }  # fmt: skip
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        # Not how often the broker looks (15 s): new cleaners may find no memory, and then there are none.
        for answer in await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, eager)]):
            for code, message, *_ in answer.resources:
                assert not code, message
    finally:
        await admin.close()


class Sleeper:
    """The standby's process, and when its copy was last known to be current."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.current_at = 0.0

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            try:
                self.current_at = float(line)
            except ValueError:
                continue  # of its log

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


async def standby_of(world: KafkaWorld, bootstrap: str, directory: Path) -> Sleeper:
    script = str(Path(__file__).with_name("standby_process.py"))
    process = await create_subprocess_exec(
        sys.executable, script, bootstrap, world.name, str(directory), str(RETENTION), stdout=PIPE
    )
    sleeper = Sleeper(process)
    world.spawn(sleeper.listen())

    async def end() -> None:
        if process.returncode is None:
            process.kill()
            await process.wait()

    world.at_end.append(end)
    return sleeper


@pytest.mark.verify(
    "it waits for compaction by the clock: the fake broker of test_lane_freshness.py covers it"
)
@pytest.mark.stack
async def test_a_standby_stopped_past_a_compacted_deletion_is_rebuilt(tmp_path: Path) -> None:
    async with (
        local_stack(tmp_path / "kafka") as kafka,  # beside the topics of other tests compaction is slow
        closing(KafkaWorld(kafka.bootstrap, tmp_path)) as world,
    ):
        work = reminding(world.name)
        await world.start(work, partitions=1, delete_retention=RETENTION)
        changelog = world.app.layout.changelog(LANE)
        lane = await world.open()
        await world.post(asking_for(world, work, 1, world.clock.now() + 3600))
        await world.settled(work.asked.TOPIC)
        written = world.clock.now()
        elsewhere = tmp_path / "elsewhere"
        standby = await standby_of(world, kafka.bootstrap, elsewhere)
        await world.until(lambda: standby.current_at > written)

        standby.signal(signal.SIGSTOP)
        stopped = world.clock.now()
        await world.until(lambda: world.clock.now() > stopped + 1)  # what was asked before is answered
        await hurry_compaction(kafka.bootstrap, changelog)
        await world.post(asking_for(world, work, 2, None))
        await world.settled(work.asked.TOPIC)
        asked = 2
        while any(is_of_the_timer(record.key) for record in await world.records(changelog)):
            assert world.clock.now() < stopped + COMPACTED, "the broker has not compacted the deletion"
            asked += 1  # a segment that is written to is not compacted
            await world.post(asking_for(world, work, asked, None, key="b"))
            await world.settled(work.asked.TOPIC)
            pause = world.clock.now() + 0.3
            await world.until(lambda pause=pause: world.clock.now() > pause)
        await world.until(lambda: world.clock.now() > stopped + RETENTION)

        woken = world.clock.now()
        standby.signal(signal.SIGCONT)
        await world.until(lambda: standby.current_at > woken)
        began = standby.current_at  # an empty copy lacks nothing that is before its beginning
        await world.until(lambda: standby.current_at > began)
        standby.signal(signal.SIGTERM)
        assert await standby.process.wait() == 0
        await lane.stop()
        store = RocksStores(elsewhere).open(0)
        assert list(store.scan(TIMERS)) == []
        store.close()
        await check_store(world, stores=RocksStores(elsewhere))
