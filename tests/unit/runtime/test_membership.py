"""What Faust's consumer is made to do for lanes."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import IllegalGenerationError, NoError, RequestTimedOutError, UnknownMemberIdError
from aiokafka.protocol.group import HeartbeatRequest

from streams.runtime.faust import membership
from streams.runtime.faust.membership import Heartbeats, Membership


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
    heartbeats = Heartbeats(coordinator, 10.0, lambda: noticed.append(now[0]))
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
