"""What a consumer relies on in its inbox, held by the one in memory and by PostgreSQL alike."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

from streams.errors import DataError, MissingHeader, SettingsError
from streams.postgres import ConsumerInbox, Database, InboxEvent
from streams.testing import MemoryInbox

Inbox = ConsumerInbox | MemoryInbox
TOPIC = "orders.order.placed.v1"


class HandlerBroke(Exception):
    pass


@pytest.fixture
async def inbox(url_or_memory: str) -> AsyncIterator[Inbox]:
    if not url_or_memory:
        yield MemoryInbox("projection")
        return
    async with Database(url_or_memory) as database:
        yield ConsumerInbox(database, "projection")


async def rolled_back(inbox: Inbox, *forms: Any) -> None:
    """A transaction of the caller, which handles an event in it, fails behind that."""
    with suppress(HandlerBroke):
        async with transaction(inbox) as connection:
            for each in forms:
                await inbox.process_idempotent(each, TOPIC, "t", b"5", handled, connection=connection)
            raise HandlerBroke


@asynccontextmanager
async def transaction(inbox: Inbox) -> AsyncIterator[Any]:
    if isinstance(inbox, MemoryInbox):
        before = dict(inbox.events)
        try:
            yield object()
        except BaseException:
            for each in inbox.events.keys() - before.keys():
                inbox.forget(each)
            raise
    else:
        async with inbox._storage.transaction() as connection:
            yield connection


async def handled(connection: Any, payload: bytes) -> bytes:
    return payload


async def all_handled(connection: Any, events: Sequence[InboxEvent]) -> list[str]:
    return [event.event_id for event in events]


def batch(*ids: str) -> list[InboxEvent]:
    return [InboxEvent(each, TOPIC, "OrderPlaced", b"1") for each in ids]


@pytest.mark.promise("inbox-once")
async def test_the_result_comes_once_then_none(inbox: Inbox) -> None:
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) == b"5"
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) is None


@pytest.mark.promise("inbox-once")
async def test_a_handler_that_fails_has_handled_nothing(inbox: Inbox) -> None:
    async def fails(connection: Any, payload: bytes) -> None:
        raise HandlerBroke

    with pytest.raises(HandlerBroke):
        await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", fails)
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) == b"5"


@pytest.mark.promise("inbox-relayed")
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


UUIDS = "0189dfb0-7d4c-7000-8000-00000000abcd"


@pytest.mark.parametrize("forms", [("e-1", b"e-1", bytearray(b"e-1")), (UUID(UUIDS), UUIDS, UUIDS.encode())])
async def test_an_id_is_the_same_in_each_form(inbox: Inbox, forms: tuple[Any, ...]) -> None:
    assert await inbox.process_idempotent(forms[0], TOPIC, "OrderPlaced", b"5", handled) == b"5"
    for form in forms:
        assert await inbox.process_idempotent(form, TOPIC, "OrderPlaced", b"5", handled) is None
    events = [InboxEvent(form, TOPIC, "OrderPlaced", b"1") for form in (*forms, "new")]
    assert await inbox.process_batch(events, all_handled) == ["new"]


@pytest.mark.parametrize("bad", [17, 1.5, b"\xff", ("e-1",), "a\0b", "\ud800", b"x" * 1025])
async def test_an_id_of_another_kind_is_refused_by_name(inbox: Inbox, bad: Any) -> None:
    with pytest.raises(DataError, match="id"):
        await inbox.process_idempotent(bad, TOPIC, "OrderPlaced", b"5", handled)


@pytest.mark.parametrize("none", [None, "", b""])
async def test_no_id_in_any_form_is_a_missing_one(inbox: Inbox, none: Any) -> None:
    with pytest.raises(MissingHeader):
        await inbox.process_idempotent(none, TOPIC, "OrderPlaced", b"5", handled)


@pytest.mark.parametrize(
    "payload",
    [{"order_id": "o-1", "lines": [1, None]}, [1], "text", b"\xff", None, UUID(UUIDS), memoryview(b"5")],
)
async def test_a_handler_gets_the_payload_as_it_was_given(inbox: Inbox, payload: Any) -> None:
    got = []

    async def handle(payload: Any) -> bool:
        got.append(payload)
        return True

    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", payload, handle)
    assert got[0] is payload


@pytest.mark.parametrize(
    "payload", [{"total": float("nan")}, {"x": object()}, "\ud800", {"a": "\ud800"}, {1: [float("inf")]}]
)
async def test_a_payload_that_cannot_be_kept_is_refused_by_name(inbox: Inbox, payload: Any) -> None:
    with pytest.raises(DataError, match="e-1"):
        await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", payload, handled)
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) == b"5"


async def nothing_asked() -> str:
    return "nothing"


async def payload_asked(payload: Any) -> str:
    return f"payload {payload['n']}"


async def both_asked(connection: Any, payload: Any, times: int = 1) -> str:
    return f"both {payload['n']}"


async def payload_by_default(db: Any, payload: Any = None) -> str:
    return f"by default {payload['n']}" if not isinstance(db, dict) else "payload as db"


async def both_by_default(db: Any = None, payload: Any = None) -> str:
    return await payload_by_default(db, payload)


async def connection_asked(connection: Any) -> str:
    return "connection" if not isinstance(connection, dict) else "payload"


async def connection_by_name(payload: Any, *, connection: Any) -> str:
    return f"by name {payload['n']}" if not isinstance(connection, dict) else "payload"


def not_a_coroutine(payload: Any) -> str:
    return f"plain {payload['n']}"


async def any_asked(*arguments: Any) -> str:
    return f"any {arguments[-1]['n']}"


class Consumer:
    async def __call__(self, payload: Any) -> str:
        return f"object {payload['n']}"

    async def method(self, payload: Any, retries: int = 3) -> str:
        return f"method {payload['n']}"


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (nothing_asked, "nothing"),
        (payload_asked, "payload 5"),
        (both_asked, "both 5"),
        (payload_by_default, "by default 5"),
        (both_by_default, "by default 5"),
        (connection_asked, "connection"),
        (connection_by_name, "by name 5"),
        (not_a_coroutine, "plain 5"),
        (any_asked, "any 5"),
        (Consumer(), "object 5"),
        (Consumer().method, "method 5"),
        (partial(both_asked, None), "both 5"),
        (lambda payload: payload_asked(payload), "payload 5"),
        (AsyncMock(return_value="mock"), "mock"),
    ],
)
async def test_handler_gets_what_it_declares(inbox: Inbox, handler: Callable[..., Any], result: str) -> None:
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", {"n": 5}, handler) == result


async def test_a_handler_declared_otherwise_has_handled_nothing(inbox: Inbox) -> None:
    async def three(connection: Any, payload: Any, more: Any) -> None:
        raise AssertionError("it was called")

    with pytest.raises(SettingsError, match="declare it as handler"):
        await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", three)
    assert await inbox.process_idempotent("e-1", TOPIC, "OrderPlaced", b"5", handled) == b"5"


async def test_a_batchs_handler_gets_what_it_declares(inbox: Inbox) -> None:
    async def events_asked(events: Sequence[InboxEvent]) -> list[Any]:
        return [event.event_id for event in events]

    assert await inbox.process_batch(batch("a", "b"), events_asked) == ["a", "b"]
    assert await inbox.process_batch(batch("c"), nothing_asked) == "nothing"


@pytest.mark.promise("inbox-transaction")
async def test_an_event_is_a_part_of_the_callers_transaction(inbox: Inbox) -> None:
    await rolled_back(inbox, "e-1", "e-2")
    async with transaction(inbox) as connection:
        got = []

        async def handle(using: Any, payload: bytes) -> bytes:
            got.append(using)
            return payload

        ask = partial(inbox.process_idempotent, source_topic=TOPIC, event_type="t", payload=b"5")
        assert await ask("e-1", handler=handle, connection=connection) == b"5"
        assert await ask("e-1", handler=handle, connection=connection) is None
        assert await inbox.process_batch(batch("e-1", "e-2"), all_handled, connection=connection) == ["e-2"]
        assert got == [connection]
    for event in ("e-1", "e-2"):
        assert await inbox.process_idempotent(event, TOPIC, "t", b"5", handled) is None


async def test_a_handler_that_fails_leaves_the_callers_transaction_whole(inbox: Inbox) -> None:
    async def fails(payload: bytes) -> None:
        raise HandlerBroke

    async with transaction(inbox) as connection:
        with pytest.raises(HandlerBroke):
            await inbox.process_idempotent("e-1", TOPIC, "t", b"5", fails, connection=connection)
        assert await inbox.process_idempotent("e-2", TOPIC, "t", b"5", handled, connection=connection) == b"5"
    assert await inbox.process_idempotent("e-1", TOPIC, "t", b"5", handled) == b"5"
    assert await inbox.process_idempotent("e-2", TOPIC, "t", b"5", handled) is None
