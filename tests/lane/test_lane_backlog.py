"""What the lanes of a worker hold in memory, however much waits for them."""

from __future__ import annotations

from lane_checker import check
from lane_hosts import host_of, opened
from lane_workloads import counting
from lane_worlds import FakeWorld

from streams.intake import FETCH_RECORDS
from streams.testing.faults import ScriptedFaults

LANES = 8


async def test_lanes_that_cannot_commit_hold_their_share_of_what_a_worker_may(
    fake: FakeWorld, fatal: list[BaseException]
) -> None:
    """Each lane had a bound of its own alone: a worker of 64 lanes took a gigabyte behind a slow broker."""
    work = counting(fake.name)
    most = 400
    await fake.start(
        work, partitions=LANES, lanes=LANES, max_batch=1000, max_backlog=10_000, max_worker_backlog=most
    )
    faults = ScriptedFaults()
    pauses = [faults.pause_at("staged", nth) for nth in range(1, LANES + 1)]
    host = host_of(fake, fatal, faults=faults)
    events = [fake.event(work, f"key-{n % 64}", n) for n in range(8000)]
    await fake.post(*events)
    host.assign(range(LANES), set(), fake.app.sources)
    await opened(fake, host)
    lanes = host.lanes.values()
    await fake.until(lambda: all(lane.backlog >= most // LANES for lane in lanes))
    for _ in range(100):
        await fake._tick()
    assert (
        sum(lane.backlog for lane in lanes) <= most + LANES * FETCH_RECORDS
    )  # each may have asked when all had room
    for pause in pauses:
        pause.resume()
    await fake.settled(work.source)
    await host.stop()
    assert fatal == []
    await check(fake, work, events)
