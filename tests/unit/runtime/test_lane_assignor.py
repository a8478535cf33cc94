"""What a member makes of what the group hands it, above all when nobody has decided anew."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

from streams.model.layout import Layout
from streams.policy.assignment import Assignment
from streams.runtime.faust.assignor import LaneAssignor
from streams.runtime.faust.membership import static_member_id

URL = "http://127.0.0.1:6066"
LAYOUT = Layout("app", partitions=8, lanes=4)
FITTING = Assignment((0, 1), (), ("orders",), {0: URL, 1: URL}, partitions=8, lanes=4)


def member(*sources: str) -> tuple[LaneAssignor, list[str]]:
    asked: list[str] = []
    app = SimpleNamespace(
        tables=SimpleNamespace(),
        lane_application=SimpleNamespace(layout=LAYOUT, sources=list(sources)),
        standbys=1,
        current_generation=lambda: 7,
        request_rebalance=lambda: asked.append("rebalance"),
        conf=SimpleNamespace(canonical_url=URL),
    )
    return LaneAssignor(app), asked


def hand(assignor: LaneAssignor, given: Assignment) -> None:
    assignor.on_assignment(ConsumerProtocolMemberAssignment(1, [], msgspec.json.encode(given)))


def test_what_fits_is_taken_and_claimed_with_its_generation() -> None:
    assignor, asked = member("orders")
    hand(assignor, FITTING)
    assert assignor.assigned == FITTING
    claim: Any = msgspec.json.decode(assignor.metadata({"orders"}).user_data)
    assert (claim["active"], claim["generation"]) == ([0, 1], 7)
    assert asked == []


def test_a_worker_that_comes_back_tells_of_its_copies() -> None:
    assignor, _ = member("orders")
    assignor.kept = (1, 3)
    claim: Any = msgspec.json.decode(assignor.metadata({"orders"}).user_data)
    assert (claim["active"], claim["standby"]) == ([], [1, 3])
    hand(assignor, msgspec.structs.replace(FITTING, members=(URL,)))
    claim = msgspec.json.decode(assignor.metadata({"orders"}).user_data)
    assert (claim["active"], claim["standby"]) == ([0, 1], [])


@pytest.mark.parametrize("cut", [(8, 8), (16, 4), (0, 0)])
def test_lanes_that_were_cut_otherwise_are_refused(cut: tuple[int, int]) -> None:
    assignor, asked = member("orders")
    hand(assignor, msgspec.structs.replace(FITTING, partitions=cut[0], lanes=cut[1]))
    assert assignor.assigned.active == ()
    assert "stop all workers" in assignor.assigned.error
    assert asked == []


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param(msgspec.structs.replace(FITTING, topics=()), id="a topic that it knows is missing"),
        pytest.param(
            msgspec.structs.replace(FITTING, owners={0: URL, 1: "http://127.0.0.1:1"}), id="its address"
        ),
    ],
)
def test_what_no_longer_fits_is_asked_about_once(stale: Assignment) -> None:
    assignor, asked = member("orders")
    hand(assignor, stale)
    hand(assignor, stale)
    assert assignor.assigned == stale
    assert asked == ["rebalance"]


def test_members_of_another_cut_have_other_static_ids() -> None:
    ids = {static_member_id(Layout("app", 8, lanes), 0, "host") for lanes in (2, 4, 8)}
    assert len(ids) == 3
