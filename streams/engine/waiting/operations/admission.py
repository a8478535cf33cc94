"""Decode operations from operators, check them against the inbox, and open their entries.

An operation on a dead letter is taken in order like a message of the letter's key, so no handler runs for
that key while it is carried out.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import structlog

from streams.engine.staging.arrival import PendingOperation
from streams.engine.staging.entry import Entry, size_of
from streams.engine.staging.inbox import Inbox
from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import capped, parse_id
from streams.engine.waiting.dead_letters.table import DeadLetters
from streams.engine.waiting.operations.operations import Operations
from streams.errors import PermanentError
from streams.model.codecs import NO_JSON
from streams.model.envelope import SOURCE, TYPE, Envelope
from streams.model.operations import (
    HANDLER_OPERATION,
    KEY_OPERATION,
    ROW_OPERATION,
    Command,
    HandlerOperation,
    Operation,
    decode_handler_operation,
    decode_key_operation,
    decode_operation,
    decode_row_operation,
)
from streams.ports import Batch, Record

log = structlog.get_logger(__name__)

#: Stands for the handler's name in inbox keys.
OPERATIONS = b"operations"
Some = TypeVar("Some", bound=Command)
#: Maximum bytes that are kept of each text from an operator.
MAX_TEXT = 512


class OperationAdmission:
    """Admits operations to a lane."""

    def __init__(self, operations: Operations, letters: DeadLetters, inbox: Inbox) -> None:
        app = letters.staging.app
        self._operations = operations
        self._staging = letters.staging
        self._letters = letters
        self._inbox = inbox
        self._layout = app.layout

    def take(self, batch: Batch, record: Record, now: float) -> PendingOperation | None:
        """Add an entry for an operation to the commit order. None: it is a duplicate, cannot be read, or the
        broker refuses its result.
        """
        is_last = record is batch.records[-1]
        next_offset = batch.next_offset if is_last else record.offset + 1
        entry = Entry(batch.tp.partition, batch.tp, next_offset, size_of(record), None, record.offset)
        self._staging.order.add(entry)
        refused = self._staging.refusals.of(entry) if self._staging.refusals.found else None
        if refused is not None:
            at = {"partition": record.partition, "offset": record.offset}
            log.warning("operation_refused", error=str(refused), action="passed over; ask again", **at)
        operation = None if refused is not None else self._read(entry, record, now)
        if operation is None:
            entry.done = True
        return operation

    def _read(self, entry: Entry, record: Record, now: float) -> PendingOperation | None:
        try:
            envelope = Envelope(record)
            envelope.require_bounded()
            operation = self._understood(record)
        except (PermanentError, *NO_JSON, ValueError) as error:
            at = {"partition": record.partition, "offset": record.offset}
            log.warning("operation_unreadable", error=str(error), action="passed over", **at)
            return None
        source = envelope.headers.get(SOURCE) or b""
        inbox_key = self._inbox.key(_inbox_name(operation), source, envelope.id_bytes)
        if not self._inbox.take(self._staging, entry.prefix, [inbox_key], now)[0]:
            self._staging.counters.duplicates += 1
            return None
        letter = None
        if isinstance(operation, Operation):
            letter = self._letters.get(store_key(*parse_id(operation.letter)))
        key = (letter.record if letter else record).key or b""
        if not isinstance(operation, HandlerOperation):  # those are about all keys
            entry.key = key
        return PendingOperation(
            entry, key, operation, envelope.id_bytes, inbox_key, self._operations.carry_out
        )

    def _understood(self, record: Record) -> Command:
        """The operation that a message requests, with its texts truncated. Raises an error of NO_JSON, or
        ValueError for a letter or row of another partition, or a wrong key.
        """
        data = record.value or b""
        if is_about_a_handler(record):
            command = decode_handler_operation(data)
            return _capped(command, "handler", "who", "why")
        if (TYPE, ROW_OPERATION.encode()) in record.headers:
            change = decode_row_operation(data)
            if change.key != record.key or self._layout.partition_of(change.key) != record.partition:
                raise ValueError(f"it is about the row {change.key!r}, and came under {record.key!r}")
            return _capped(change, "table", "who", "why")
        if (TYPE, KEY_OPERATION.encode()) in record.headers:  # any partition: rows may be in a wrong one
            about = decode_key_operation(data)
            if about.key != record.key:
                raise ValueError(f"it is about the key {about.key!r}, and came under {record.key!r}")
            return _capped(about, "who", "why")
        operation = decode_operation(data)
        parse_id(operation.letter, within=record.partition)
        return _capped(operation, "who", "why", "job")


def is_about_a_handler(record: Record) -> bool:
    """Whether an operation is about a handler, and not about a dead letter, a row or a key."""
    return (TYPE, HANDLER_OPERATION.encode()) in record.headers


def _inbox_name(operation: Command) -> bytes:
    """The name that stands for a handler in inbox keys. For an operation on a handler it includes kind and
    handler, because people choose the ids of these, perhaps one for several.
    """
    if not isinstance(operation, HandlerOperation):
        return OPERATIONS
    return OPERATIONS + f":{operation.kind}:{operation.handler}".encode()


def _capped(operation: Some, *names: str) -> Some:
    texts = {name: capped(getattr(operation, name), MAX_TEXT) for name in names}
    return msgspec.structs.replace(operation, **texts)
