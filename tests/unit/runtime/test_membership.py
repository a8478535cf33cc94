"""What Faust's consumer is made to do for lanes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from streams.runtime import membership
from streams.runtime.membership import Membership


async def test_a_member_that_asks_for_a_decision_lets_its_lanes_open_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "REJOIN_AFTER", 0.05)
    joined = asyncio.Event()
    consumer = SimpleNamespace(_coordinator=SimpleNamespace(request_rejoin=joined.set))
    member = Membership.__new__(Membership)
    member._thread = SimpleNamespace(_ensure_consumer=lambda: consumer)
    member.request_rebalance()
    assert not joined.is_set()
    async with asyncio.timeout(5):
        await joined.wait()
