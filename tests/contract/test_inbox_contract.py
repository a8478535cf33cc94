"""What a consumer relies on in its inbox, held by the one in memory and by PostgreSQL alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from streams.errors import MissingHeader
from streams.postgres import ConsumerInbox, Database, InboxEvent
from streams.testing import MemoryInbox

Inbox = ConsumerInbox | MemoryInbox
TOPIC = "orders.order.placed.v1"


class HandlerBroke(Exception):
    pass


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.stack)])
def url(request: pytest.FixtureRequest) -> str:
    """Of a database; empty: in memory."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else ""


@pytest.fixture
async def inbox(url: str) -> AsyncIterator[Inbox]:
    if not url:
        yield MemoryInbox("projection")
        return
    async with Database(url) as database:
        yield ConsumerInbox(database, "projection")


async def handled(connection: Any, payload: bytes) -> bytes:
    return payload


async def all_handled(connection: Any, events: Sequence[InboxEvent]) -> list[str]:
    return [event.event_id for event in events]


def batch(*ids: str) -> list[InboxEvent]:
    return [InboxEvent(each, TOPIC, "OrderPlaced", b"1") for each in ids]


async def test_the_result_comes_once_then_none(inbox: Inbox) -> None:
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) == b"5"
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) is None


async def test_a_handler_that_fails_has_handled_nothing(inbox: Inbox) -> None:
    async def fails(connection: Any, payload: bytes) -> None:
        raise HandlerBroke

    with pytest.raises(HandlerBroke):
        await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", fails)
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) == b"5"


async def test_a_batch_is_what_is_new_in_order_and_once(inbox: Inbox) -> None:
    assert await inbox.process_batch(batch("c", "a", "b", "a"), all_handled) == ["c", "a", "b"]
    assert await inbox.process_batch(batch("b", "d", "a"), all_handled) == ["d"]
    assert await inbox.process_batch(batch("b", "d"), all_handled) is None
    assert await inbox.process_batch([], all_handled) is None


async def test_of_two_at_once_one_runs(inbox: Inbox) -> None:
    answers = await asyncio.gather(
        *(inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) for _ in range(5))
    )
    assert (answers.count(b"5"), answers.count(None)) == (1, 4)


async def test_an_event_without_an_id_is_refused(inbox: Inbox) -> None:
    with pytest.raises(MissingHeader):
        await inbox.process_idempotent("", TOPIC, "OrderPlaced", b"5", handled)
