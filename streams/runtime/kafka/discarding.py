"""Letting go of a producer whose outcome is in doubt: nothing of what it still holds is sent any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, NoReturn

from aiokafka.errors import (
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)

_CLOSE_TIMEOUT = 2.0

#: What the broker says about the records themselves: the same ones would be refused again.
REFUSALS = (
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)


def retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve a future's outcome, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()


def cut(client: Any) -> None:
    """From here on nothing leaves this client, whatever a background task of its producer still holds."""

    async def refuse(*_: object, **__: object) -> NoReturn:
        raise KafkaError("the producer was discarded")

    async def nothing() -> None:
        pass

    client.send = refuse
    client.force_metadata_update = lambda: asyncio.ensure_future(nothing())
    client._maybe_wait_metadata = nothing


async def close_cut(producer: Any) -> None:
    """Close a producer that has been cut off.

    Not with its own `stop`: that one first waits until every batch is delivered, for ever when the broker
    is gone, and sends the commit that a step has timed out on.
    """
    producer._closed = True
    task = producer._sender.sender_task
    if task is not None:
        # It would fail batches that are queued for a retry twice.
        task.remove_done_callback(producer._sender._fail_all)
    await _close_connections(producer.client)
    if task is not None:
        task.cancel()
        await asyncio.wait([task], timeout=_CLOSE_TIMEOUT)
        task.cancel()
        task.add_done_callback(retrieve)
        await _close_connections(producer.client)  # one that was being opened meanwhile
    waiters = [producer._txn_manager._transaction_waiter]
    for batches in producer._message_accumulator._batches.values():
        waiters += [waiter for batch in batches for waiter in (batch.future, batch._drain_waiter)]
    for waiter in waiters:
        if waiter is not None:
            waiter.add_done_callback(retrieve)


async def _close_connections(client: Any) -> None:
    with suppress(Exception):  # what cannot be closed here is closed by the broker
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await client.close()
