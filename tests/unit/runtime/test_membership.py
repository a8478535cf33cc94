"""What Faust's consumer is made to do for lanes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from streams.runtime import membership
from streams.runtime.membership import Membership


async def test_a_member_lets_its_lanes_open_before_it_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "REJOIN_AFTER", 0.01)
    joined = asyncio.Event()
    consumer = SimpleNamespace(_coordinator=SimpleNamespace(request_rejoin=joined.set))
    member = Membership.__new__(Membership)
    member._thread = SimpleNamespace(_ensure_consumer=lambda: consumer)
    member.request_rebalance()
    assert not joined.is_set()
    await joined.wait()
