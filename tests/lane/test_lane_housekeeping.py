"""What a lane asks the cluster now and then holds up nothing, and its failing ends nothing."""

import asyncio
from typing import Any

import pytest
from lane_workloads import counting, reminding
from lane_worlds import FakeWorld
from structlog.testing import capture_logs

from streams.lane.housekeeping import HOUSEKEEPING
from streams.lane.standby import Standby
from streams.model.envelope import new_headers
from streams.ports import TP, Ports
from streams.positions.review import accept
from streams.testing.broker import Fault
from streams.testing.faults import NoFaults


@pytest.mark.slow("six thousand ticks")
async def test_a_question_without_answer_does_not_reopen_a_lane(fake: FakeWorld) -> None:
    await fake.start(work := counting(fake.name), partitions=1)
    lane = await fake.open()
    await fake.until(lambda: lane.lane.commits)  # its first positions
    fake.cluster.inject(Fault.UNAVAILABLE, times=2)
    with capture_logs() as logs:
        await fake.clock.advance(HOUSEKEEPING + 10)
        await fake.until(lambda: not fake.cluster.pending)
        await fake.post(fake.event(work, "a", 0))
        await fake.until(lambda: lane.handled == 1)
    assert lane.lane.reopened == 0
    assert lane.lane.state == "open"
    told = [entry for entry in logs if entry["event"] == "lane_cannot_ask"]
    assert len(told) == 2


async def test_timers_ring_while_a_question_waits_for_its_answer(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fake.start(work := reminding(fake.name), partitions=1)
    lane = await fake.open()
    asked = asyncio.Event()

    async def silent(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(fake.cluster, "identity", silent)
    await fake.clock.advance(HOUSEKEEPING + 10)
    await fake.until(asked.is_set)
    topic, due = work.asked.TOPIC, fake.clock.now() + 2
    body = fake.app.message_codecs[topic].encode(work.asked(k="a", due=due))
    headers = new_headers(topic, "a", source="outside", time=1e9, message_id="a-0")
    await fake.post(fake.raw(topic, "a", body, headers))
    await fake.until(lambda: lane.lane.counters.timers == 1)
    assert fake.clock.now() < due + 1


async def test_a_standby_of_a_damaged_changelog_says_so_until_mended(fake: FakeWorld) -> None:
    await fake.start(work := counting(fake.name), partitions=1)
    lane = await fake.open()
    await fake.post(fake.event(work, "a", 0))
    await fake.settled(work.source)
    await lane.stop()
    changelog = TP(fake.app.layout.changelog("counts"), 0)
    await fake.spoil(changelog, 0)
    standby = Standby(fake.app, 0, Ports(fake.cluster, fake.stores(), fake.clock, NoFaults()))
    with capture_logs() as logs:
        task = fake.spawn(standby.run())
        end = fake.clock.now() + 120
        while fake.clock.now() < end:
            await fake.clock.advance(0.5)
    told = [entry for entry in logs if entry["event"] == "standby_stands"]
    assert [entry for entry in logs if entry["event"] == "standby_restarts"] == []
    assert 2 <= len(told) <= 5
    assert "docs/operating.md" in told[0]["error"]
    await fake.truncate(changelog, 1)
    await accept(fake.app.layout, fake.cluster, changelog.topic, [0])
    await fake.until(lambda: standby.records)
    standby.stop()
    await fake.until(task.done)
