"""`python -m benchmarks` on real Kafka: the lane does the workload, each event once."""

from pathlib import Path

import pytest

from benchmarks.kafka import check_output, create, preload
from benchmarks.micro import Amounts, Ground, alternate
from benchmarks.peers.catalog import Peer, own_peers
from benchmarks.peers.workload import Format
from benchmarks.sections import NotMeasured
from streams.local import Stack

EVENTS = 100_000  # fewer come out in leaps on a fast machine: no rate


def silent(_line: str) -> None:
    pass


def test_the_lane_does_the_workload(kafka: Stack, tmp_path: Path) -> None:
    ground, lane = Ground(kafka.bootstrap, tmp_path, silent), own_peers()[0]
    amounts = Amounts(fast=EVENTS, slow=EVENTS, warmed=EVENTS)
    (rate,) = alternate(ground, [lane], Format.AVRO, amounts, runs=1)[lane.name]
    assert rate.per_second > 0


def test_a_peer_that_ends_is_named_with_its_output(kafka: Stack, tmp_path: Path) -> None:
    broken = Peer("broken", "a broken peer", "", ["false"])
    ground = Ground(kafka.bootstrap, tmp_path, silent)
    with pytest.raises(
        NotMeasured, match=r"a broken peer \(json\): its program ended .* its output: .*\.log"
    ):
        alternate(ground, [broken], Format.JSON, Amounts(fast=100, slow=100, warmed=100), runs=1)


async def test_events_that_are_missing_doubled_or_miscounted_are_noticed(kafka: Stack) -> None:
    await create(kafka.bootstrap, "bench.nothing")
    with pytest.raises(NotMeasured, match="of 7 events 7 did not come out and 0 more than once"):
        await check_output(kafka.bootstrap, "bench.nothing", Format.JSON, 7)
    for _ in range(2):
        await preload(kafka.bootstrap, "bench.twice", Format.JSON, 5)
    with pytest.raises(NotMeasured, match="of 7 events 2 did not come out and 5 more than once"):
        await check_output(kafka.bootstrap, "bench.twice", Format.JSON, 7)
    await preload(kafka.bootstrap, "bench.uncounted", Format.JSON, 5)
    with pytest.raises(NotMeasured, match="of 5 events 5 came out with a key or a count that is not theirs"):
        await check_output(kafka.bootstrap, "bench.uncounted", Format.JSON, 5)
    await check_output(kafka.bootstrap, "bench.uncounted", Format.JSON, 5, counted=False)
