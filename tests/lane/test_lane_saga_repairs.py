"""What operators ask of sagas, they are done once, whatever becomes of the lane, and told once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lane_checker import check_positions, check_store
from lane_errands import Errands, TripRepair, stuck, until_they_stand
from lane_sagas import TripTransition
from lane_scenes import POINTS, post, stopped
from lane_worlds import FakeWorld, Post
from test_lane_sagas import rows, statuses

from streams.testing.broker import Fault

ASKED = [
    TripRepair(saga_id="trip:a", operation="retry", step="ticket", who="ann", why="paper is in"),
    TripRepair(saga_id="trip:b", operation="skip", step="ticket", who="ann", why="she has one"),
    TripRepair(saga_id="trip:c", operation="done", step="ticket", who="bob", why="by hand"),
    TripRepair(saga_id="trip:d", operation="cancel", step="", who="bob", why="she rang"),
    TripRepair(saga_id="trip:e", operation="cancel", step="", who="ann", why="she rang"),
    TripRepair(saga_id="trip:e", operation="retry", step="seat", who="eve", why="why not"),
]
ENDS = {"a": "completed", "b": "completed", "c": "completed", "d": "failed", "e": "compensated"}
NO_WAY_BACK = "trip:d cannot go back: ticket may have been done, and nothing undoes it"
TOLD = {
    "a": ["ticket retried: paper is in (ann)"],
    "b": ["ticket skipped: she has one (ann)"],
    "c": ["ticket done by hand: by hand (bob)"],
    "d": [f"cancel refused: {NO_WAY_BACK}; it was asked: she rang (bob)"],
    "e": ["cancelled: she rang (ann)",
          "retry refused: trip:e is compensating: it waits for nobody; it was asked: why not (eve)"],
}  # fmt: skip


def asked(fake: FakeWorld) -> list[Post]:
    """Each operation, twice with the same id."""
    return [post(fake, repair, number) for _ in range(2) for number, repair in enumerate(ASKED, start=10)]


async def check(fake: FakeWorld, work: Errands) -> None:
    assert await statuses(fake) == ENDS
    assert work.printer.printed == {"trip:a:ticket": 1}
    told: dict[str, list[Any]] = {}
    for record in await fake.records(TripTransition.TOPIC):
        entry = json.loads(record.value or b"")
        told.setdefault(entry["saga_id"].removeprefix("trip:"), []).append(entry)
    for key, row in (await rows(fake)).items():
        assert [entry["number"] for entry in told[key]] == list(range(1, row.entries + 1))
        by_operators = [
            entry["detail"] for entry in told[key] if entry["detail"].endswith(("(ann)", "(bob)", "(eve)"))
        ]
        assert [detail for detail in by_operators if detail in TOLD[key]] == TOLD[key]
    await check_positions(fake, fake.app.routes)
    await check_store(fake)


async def end(fake: FakeWorld, lane: Any) -> None:
    await until_they_stand(fake, ENDS)
    await stopped(fake, lane, *fake.app.routes)


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
async def test_operations_are_done_once_when_the_lane_is_killed(
    fake: FakeWorld, point: str, nth: int
) -> None:
    work, lane = await stuck(fake)
    fake.faults.kill_at(point, nth=fake.faults.reached[point] + nth)
    await fake.post(*asked(fake))
    await lane.killed()
    assert fake.faults.pending == []
    await end(fake, await fake.open())
    await check(fake, work)


@pytest.mark.parametrize("fault", [Fault.COMMIT_DONE, Fault.COMMIT_LOST])
async def test_operations_are_done_once_when_their_commit_has_no_answer(
    fake: FakeWorld, fault: Fault
) -> None:
    work, lane = await stuck(fake)
    fake.cluster.inject(fault)
    await fake.post(*asked(fake))
    await end(fake, lane)
    assert fake.cluster.happened == {fault: 1}
    await check(fake, work)


async def test_an_operation_that_comes_again_is_not_done_again(fake: FakeWorld) -> None:
    work, lane = await stuck(fake)
    work.printer.broken = True
    first = post(fake, ASKED[0], 10)
    for _ in range(2):
        await fake.post(first)
        handled = -1
        while handled != lane.handled:
            handled = lane.handled
            await fake.settled(*fake.app.routes)
    await lane.stop()
    assert lane.lane.counters.duplicates == 1
    row = (await rows(fake))["a"]
    assert row.status == "failed"
    assert [entry.detail for entry in row.log].count("ticket retried: paper is in (ann)") == 1
