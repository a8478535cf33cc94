"""Carry out operations on a lane's dead letters, handlers, rows and keys.

Row, queue, inbox entry and the record in the log of operations are in one transaction.
"""

from __future__ import annotations

import structlog

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Fresh, PendingOperation
from streams.engine.staging.changes import Change
from streams.engine.staging.entry import Entry
from streams.engine.staging.inbox import Inbox, inbox_entry
from streams.engine.staging.keys import prefix_of, store_key
from streams.engine.staging.payloads import checked, identified_anew, unpacked
from streams.engine.waiting.dead_letters.row import Letter, parse_id
from streams.engine.waiting.operations.decisions import (
    Do,
    LetterDecision,
    OperationLimits,
    decide_letter,
    refused,
)
from streams.engine.waiting.operations.erasing import erase_key
from streams.engine.waiting.operations.pauses import in_log, set_handler
from streams.engine.waiting.operations.replays import release, replay
from streams.engine.waiting.waiting import Waiting
from streams.errors import PermanentError, Undecodable, UnknownSchema
from streams.model.bound import BoundHandler, BoundRoute, BoundTable
from streams.model.codecs import decode_row
from streams.model.envelope import RECORD_OVERHEAD, SOURCE, Envelope, rfc3339
from streams.model.operations import (
    HandlerOperation,
    KeyOperation,
    LetterCommand,
    Operation,
    RowCommand,
    RowDone,
    RowOperation,
)
from streams.model.row_keys import row_key

log = structlog.get_logger(__name__)


class Operations:
    """Carries out the operations of a lane, each when it is its key's turn. Times are epoch seconds."""

    def __init__(self, waiting: Waiting, inbox: Inbox) -> None:
        app = waiting.staging.app
        self._app = app
        self._staging = waiting.staging
        self._letters = waiting.letters
        self._waiting = waiting
        self._inbox = inbox
        self._limits = OperationLimits(app.lane_options.max_replays, app.lane_options.edit_dead_letters)

    def carry_out(self, pending: PendingOperation, now: float) -> Fresh | None:
        """Carry out an operation. Returns the message of a dead letter that starts over, if there is one."""
        operation, entry, message = pending.operation, pending.entry, None
        if isinstance(operation, HandlerOperation):
            result = set_handler(self._waiting, entry, operation, pending.id_bytes, now)
            self._mark_done(pending, result, now)
        elif isinstance(operation, RowOperation):
            result = mend_row(self._staging, entry, operation, pending.id_bytes, now)
            self._mark_done(pending, result, now)
        elif isinstance(operation, KeyOperation):
            result = erase_key(self._waiting, entry, operation, pending.id_bytes, now)
            self._mark_done(pending, result, now)
        else:
            letter = self._letters.get(store_key(*parse_id(operation.letter)))
            decision, message = self._settle(pending, letter, operation, now)
            self._mark_done(pending, decision.result, now)
            self._log_operation(entry, operation, pending.id_bytes, letter, decision, now)
        return message

    def _settle(
        self, pending: PendingOperation, letter: Letter | None, operation: Operation, now: float
    ) -> tuple[LetterDecision, Fresh | None]:
        """Decide an operation on a letter, and stage what follows, except for the letter's row if it is not
        replayed. Returns the decision, and the letter's message if that starts over.
        """
        now_ms, entry = int(now * 1000), pending.entry
        decision = decide_letter(
            letter,
            operation,
            id_bytes=pending.id_bytes,
            now_ms=now_ms,
            limits=self._limits,
            gone=letter is not None and self._app.taker(letter.handler, letter.topic) is None,
        )
        if letter is None or decision.letter is None:
            return decision, None
        if operation.kind is LetterCommand.EDIT and self._app.wiring.is_source(letter.topic):
            return refused(letter, operation, now_ms, f"{letter.topic} is a source: others write it"), None
        if decision.do is Do.RELEASE:
            release(self._waiting, entry, letter, now)
        elif decision.do is Do.REPLAY:
            # A replay that fails must find this row. An edit may refer to another object.
            self._staging.put(entry, [self._letters.set(decision.letter)])
            self._staging.refer(entry, decision.letter.record, now)
            why_not, message = self._replay(entry, decision.letter, now)
            return (refused(letter, operation, now_ms, why_not) if why_not else decision), message
        return decision, None

    def _mark_done(self, pending: PendingOperation, result: str, now: float) -> None:
        """Mark an operation as done in the inbox, so that it is not repeated."""
        self._staging.counters.operations += 1
        pending.entry.ids.append(inbox_entry(pending.inbox_key, int(now * 1000), result.encode()[:200]))

    def _log_operation(
        self,
        entry: Entry,
        operation: Operation,
        id_bytes: bytes,
        letter: Letter | None,
        decision: LetterDecision,
        now: float,
    ) -> None:
        if letter is not None and decision.letter is not None:
            if decision.do is not Do.REPLAY:
                self._staging.put(entry, [self._letters.set(decision.letter)])
            done = self._letters.done(decision.letter, operation, id_bytes, now, decision.result)
            entry.sends.append(done)
        log.info(
            "operation",
            operation=str(operation.kind),
            letter=operation.letter,
            who=operation.who,
            why=operation.why,
            result=decision.result,
        )

    def _replay(self, entry: Entry, letter: Letter, now: float) -> tuple[str, Fresh | None]:
        """Stage a replay. Returns why it cannot be, empty if it is staged; and its message, if that starts
        over with all handlers.
        """
        route = self._app.routes.get(letter.topic)
        if route is None:
            return f"nothing handles {letter.topic} any more", None
        handler = self._app.taker(letter.handler, letter.topic)
        if handler is None:
            return self._take_anew(entry, route, letter, now)
        try:
            record = identified_anew(route, letter.record, letter.handler)
            envelope = checked(route, record)
            message = unpacked(route, record, envelope)
        except (PermanentError, UnknownSchema) as error:
            return f"it cannot be read: {error}", None
        arrival = Fresh(entry, route, record, envelope, message)
        return replay(self._waiting, arrival, handler, letter, now), None

    def _take_anew(
        self, entry: Entry, route: BoundRoute, letter: Letter, now: float
    ) -> tuple[str, Fresh | None]:
        """Start a message over with all handlers that have not handled it, as if it came now. This is for
        letters that no handler gave up, or whose handler is gone.
        """
        if letter.handler and (why := self._why_unknown(route, letter, now)):
            return f"there is no handler {letter.handler}, and who has handled it is unknown: {why}", None
        arrival = None
        try:
            record = identified_anew(route, letter.record, letter.handler)
            envelope = checked(route, record)
            home = self._app.layout.partition_of(letter.key or b"")
            if route.outside and home != entry.partition:
                self._staging.forward(entry, record, home, now)
            else:
                message = unpacked(route, record, envelope)
                arrival = Fresh(entry, route, record, envelope, message, now)
                arrival.handlers = tuple(self._left(route, envelope, entry.partition, now))
        except UnknownSchema as error:
            return f"it cannot be read: {error}", None
        except PermanentError as error:
            self._letters.write(entry, route, letter.record, error, letter.handler, now, holds=letter.queue)
            return "", None
        release(self._waiting, entry, letter, now)
        self._letters.succeeded(entry, letter.record, letter.handler, now)
        return "", arrival

    def _why_unknown(self, route: BoundRoute, letter: Letter, now: float) -> str:
        """Why the inbox does not know which handlers have handled a letter's message; empty: it does."""
        if not route.inbox:
            return f"{letter.topic} is not covered by the inbox"
        if letter.edited:
            return "it was edited, and has a new id"
        age = now - min(letter.timestamp, letter.failed_at_ms) / 1000
        return "it is older than what the inbox keeps" if age > self._app.lane_options.inbox_retention else ""

    def _left(
        self, route: BoundRoute, envelope: Envelope, partition: int, now: float
    ) -> list[tuple[BoundHandler, bytes | None]]:
        """The handlers that have not handled a message. Its ids are claimed for them in the inbox."""
        if not route.inbox:
            return list(route.handlers_without_inbox)
        source = envelope.headers.get(SOURCE) or b""
        keys = [self._inbox.key(each.name_bytes, source, envelope.id_bytes) for each in route.handlers]
        new = self._inbox.take(self._staging, prefix_of(partition), keys, now)
        marked = zip(route.handlers, keys, new, strict=True)
        return [(handler, key) for handler, key, is_new in marked if is_new]


def mend_row(staging: StagingArea, entry: Entry, operation: RowOperation, id_bytes: bytes, now: float) -> str:
    """Replace or delete a row that cannot be read, at `now` in epoch seconds. Returns the result in words.

    It runs in the row's lane, in the turn of its key, so no handler uses the row meanwhile. A row that can be
    read is not changed, because only handlers may change it.
    """
    result = _mended(staging, entry, operation)
    key, subkey = (part.decode("utf-8", "replace") for part in (operation.key, operation.subkey))
    done = RowDone(
        operation=str(operation.kind),
        id=id_bytes.decode("utf-8", "replace"),
        table=operation.table,
        key=key,
        subkey=subkey,
        partition=entry.partition,
        who=operation.who,
        why=operation.why,
        asked_at=rfc3339(operation.at_ms / 1000),
        at=rfc3339(now),
        result=result,
    )
    entry.sends.append(in_log(staging, operation.table.encode(), done))
    row = {"table": operation.table, "row_key": key, "subkey": subkey}
    who = {"who": operation.who, "why": operation.why}
    log.info("operation", operation=str(operation.kind), **row, **who, result=result)
    return result


def _mended(staging: StagingArea, entry: Entry, operation: RowOperation) -> str:
    table = staging.app.tables.get(operation.table)
    if table is None:
        return f"refused: there is no table {operation.table}"
    key = row_key(operation.key, operation.subkey)
    local = entry.prefix + key
    data = staging.value(table.name, local)
    if data is None:
        return "refused: there is no such row"
    if _is_readable(table, data):
        return "refused: the row can be read, so only handlers may change it"
    limit = staging.app.lane_options.max_message_bytes - RECORD_OVERHEAD
    change, why_not = _change(table, key, operation, limit)
    if change is None:
        return f"refused: {why_not}"
    staging.put(entry, [change])
    staging.unreadable.forget(table.name, local)
    return f"{operation.kind}d: it had {len(data)} bytes, which began with {data[:64].hex() or 'nothing'}"


def _change(table: BoundTable, key: bytes, operation: RowOperation, limit: int) -> tuple[Change | None, str]:
    """The change of the row, or None and why it is refused."""
    if operation.kind is RowCommand.DELETE:
        return Change(table.name, key, None), ""
    value = operation.value or b""
    try:
        row = decode_row(table.codec, value)
    except (Undecodable, UnknownSchema) as error:
        return None, f"the replacement cannot be read either: {error}"
    if (size := len(key) + len(value)) > limit:
        return None, f"the replacement has {size} bytes, the limit is {limit}"
    return Change(table.name, key, value, row), ""


def _is_readable(table: BoundTable, data: bytes) -> bool:
    try:
        decode_row(table.codec, data)
    except (Undecodable, UnknownSchema):
        return False
    return True
