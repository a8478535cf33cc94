"""What Faust's consumer is made to do for lanes, and what a member makes of what the group hands it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import IllegalGenerationError, NoError, RequestTimedOutError, UnknownMemberIdError
from aiokafka.protocol.group import HeartbeatRequest

from streams.host import membership
from streams.host.assignor import LaneAssignor
from streams.host.membership import Heartbeats, Membership, static_member_id
from streams.model.layout import Layout
from streams.model.policy.assignment import Assignment


async def test_a_member_lets_its_lanes_open_before_it_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "REJOIN_AFTER", 0.01)
    joined = asyncio.Event()
    consumer = SimpleNamespace(_coordinator=SimpleNamespace(request_rejoin=joined.set))
    member = Membership.__new__(Membership)
    member._thread = SimpleNamespace(_ensure_consumer=lambda: consumer)
    member.request_rebalance()
    assert not joined.is_set()
    await joined.wait()


ANSWERS = {"good": NoError, "unknown": UnknownMemberIdError, "behind": IllegalGenerationError}


class Coordinator:
    """What aiokafka's coordinator does with a heartbeat; `answers` are what the group says, in order."""

    group_id, coordinator_id, generation, member_id = "group", 1, 7, "member-0"
    _do_heartbeat = GroupCoordinator._do_heartbeat
    reset_generation = GroupCoordinator.reset_generation

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    async def _send_req(self, request: object) -> SimpleNamespace:
        assert isinstance(request, HeartbeatRequest)
        answer = self._answers.pop(0)
        if answer == "failed":
            raise RequestTimedOutError
        return SimpleNamespace(error_code=ANSWERS[answer].errno)

    def request_rejoin(self) -> None:
        """It joins again by itself in these tests."""


async def beaten(monkeypatch: pytest.MonkeyPatch, *answers: str, pause: float = 2.0) -> int:
    """How often it was noticed that another process has the identity; the member joins again after a loss."""
    now, noticed = [100.0], []
    monkeypatch.setattr(membership, "monotonic", lambda: now[0])
    coordinator = Coordinator(*answers)
    heartbeats = Heartbeats(coordinator, 10.0, lambda: noticed.append(now[0]), lambda: 0.0)
    for number in range(len(answers)):
        now[0] += pause
        await heartbeats.beat()
        coordinator.member_id = coordinator.member_id or f"member-{number}"
    return len(noticed)


async def test_a_place_that_is_taken_thrice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fight = ["good", "unknown"] * 3
    assert await beaten(monkeypatch, *fight) == 1
    assert await beaten(monkeypatch, *fight[:5]) == 0


async def test_members_that_were_silent_or_seldom_forgotten_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fight = ["good", "unknown"] * 3
    assert await beaten(monkeypatch, *fight, pause=11.0) == 0, "its session had ended"
    assert await beaten(monkeypatch, *["good"] * 30, *fight[:2], *["good"] * 60, *fight[:4]) == 0
    assert await beaten(monkeypatch, *["failed"] * 9) == 0


async def test_a_member_that_missed_a_rebalance_has_lost_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generation is over, and its id still its own; aiokafka forgets both."""
    assert await beaten(monkeypatch, *["good", "behind"] * 9) == 0
    assert await beaten(monkeypatch, *["good", "behind", "failed"] * 3, *["good", "unknown"] * 2) == 0
    assert await beaten(monkeypatch, *["good", "behind", "good", "unknown"] * 3) == 1


@pytest.mark.promise("unread-output")
async def test_a_member_whose_lanes_stand_still_sends_no_heartbeat() -> None:
    """Its thread is well, and the group would let it keep lanes that nobody works on."""
    stood = [0.0]
    coordinator = Coordinator("good", "good")
    heartbeats = Heartbeats(coordinator, 10.0, lambda: None, lambda: stood[0])
    assert await heartbeats.beat()
    stood[0] = membership.STANDS + 0.1
    assert await heartbeats.beat(), "aiokafka must not look for another coordinator"
    assert coordinator._answers == ["good"]
    stood[0] = 0.0
    assert await heartbeats.beat()
    assert coordinator._answers == []


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
