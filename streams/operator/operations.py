"""The operators' desk: their messages to the lane, and what these do to its dead letters.

An operation is taken in the order of the letter's key like a message of that key, so nothing of the key is
under way while it is settled. Its row, its queue, its inbox entry and its line in the log of operations are
in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import structlog

from streams.dead_letters.row import Letter, capped, parse_id
from streams.dead_letters.table import DeadLetters
from streams.errors import PermanentError, UnknownSchema
from streams.model.application import Application, BoundHandler, BoundRoute
from streams.model.codecs import NO_JSON
from streams.model.envelope import SOURCE, TYPE, Envelope
from streams.model.layout import INBOX
from streams.model.operations import (
    HANDLER_OPERATION,
    HandlerOperation,
    Operation,
    decode_handler_operation,
    decode_operation,
)
from streams.operator.decisions import Do, LetterDecision, Limits, decide_letter, refused
from streams.operator.pauses import Pauses
from streams.operator.replays import Replays
from streams.ports import Batch, Clock, Record
from streams.staging.arrival import Arrival, PendingOperation
from streams.staging.changes import Change, prefix_of, store_key
from streams.staging.inbox import Inbox
from streams.staging.outcomes import OutcomeWriter
from streams.staging.sequences import Entry, Overlay, Sequences, size_of
from streams.staging.unpacking import checked, unpacked

log = structlog.get_logger(__name__)

#: Stands in the inbox where the name of a handler stands for messages.
OPERATIONS = b"operations"
#: Of what operators say, so many bytes are kept.
MAX_SAID = 512


class OperationProcessor:
    """Takes operations of a lane and settles each when it is its key's turn."""

    def __init__(
        self,
        app: Application,
        clock: Clock,
        inbox: Inbox,
        *,
        overlay: Overlay,
        writer: OutcomeWriter,
        letters: DeadLetters,
        replays: Replays,
        pauses: Pauses,
        sequences: Sequences,
        dispatch: Callable[[Arrival], None],
        has_room: Callable[[], bool],
    ) -> None:
        """`dispatch` is given what was taken; while there is no room for it, the rest waits. What is asked of
        a handler needs none: it may be why there is none.
        """
        self._app = app
        self._clock = clock
        self._inbox = inbox
        self._letters = letters
        self._overlay = overlay
        self._writer = writer
        self._replays = replays
        self._pauses = pauses
        self._sequences = sequences
        self._dispatch = dispatch
        self._has_room = has_room
        #: No handler's: of an operation nothing follows but what it asks for.
        any_route = next(iter(app.routes.values()))
        self._nobody = replace(any_route, handlers=(), handlers_without_inbox=(), is_async=False)
        self._limits = Limits(app.lane_options.max_replays, app.lane_options.edit_dead_letters)

    # -- taking them ----------------------------------------------------------------------------------

    def accept(self, batch: Batch) -> Batch | None:
        """Take operations in order; returns those for which there is no room yet."""
        self._writer.at(self._clock.now())
        for taken, record in enumerate(batch.records):
            if not self._has_room() and not _is_about_a_handler(record):
                return Batch(batch.tp, batch.records[taken:], batch.next_offset)
            is_last = record is batch.records[-1]
            next_offset = batch.next_offset if is_last else record.offset + 1
            entry = Entry(batch.tp.partition, batch.tp, next_offset, size_of(record))
            self._sequences.add(entry)
            if is_last:
                self._sequences.end_of_batch(batch.tp, entry)
            arrival = self._read(entry, record)
            if arrival is None:
                entry.done = True
            else:
                self._dispatch(arrival)
        return None

    def _read(self, entry: Entry, record: Record) -> Arrival | None:
        """An operation on its way; None: it has come before, or nobody can read it."""
        try:
            envelope = Envelope(record)
            envelope.require_bounded()
            operation = _understood(record)
        except (PermanentError, *NO_JSON, ValueError) as error:
            at = {"partition": record.partition, "offset": record.offset}
            log.warning("operation_unreadable", error=str(error), action="passed over", **at)
            return None
        source = envelope.headers.get(SOURCE) or b""
        inbox_key = self._inbox.key(_asked_of(operation), source, envelope.id_bytes)
        own = entry.prefix + inbox_key
        if self._overlay.get(INBOX, own) is not None or self._inbox.seen([own], self._writer.now)[0]:
            self._writer.counters.duplicates += 1
            return None
        self._overlay.put(own, Change(INBOX, inbox_key, b""))
        letter = self._letter(operation) if isinstance(operation, Operation) else None
        arrival = Arrival(entry, self._nobody, letter.record if letter else record, envelope, None)
        arrival.asked = PendingOperation(operation, envelope.id_bytes, inbox_key)
        return arrival

    def _letter(self, operation: Operation) -> Letter | None:
        return self._letters.get(store_key(*parse_id(operation.letter)))

    # -- settling them --------------------------------------------------------------------------------

    def settle(self, arrival: Arrival) -> None:
        """Do what an arrival asks for, if it is an operation. When a message is to be taken anew, it goes on
        as that message; it has no handlers otherwise.
        """
        if arrival.asked is None:
            return
        asked, arrival.asked = arrival.asked, None
        now = self._clock.now()
        self._writer.at(now)
        operation, entry, now_ms = asked.operation, arrival.entry, int(now * 1000)
        if isinstance(operation, HandlerOperation):
            self._note(entry, asked, self._pauses.settle(entry, operation, asked.id_bytes, now), now)
            return
        letter = self._letter(operation)
        verdict = decide_letter(
            letter,
            operation,
            id_bytes=asked.id_bytes,
            now_ms=now_ms,
            limits=self._limits,
            gone=letter is not None and self._app.taker(letter.handler, letter.topic) is None,
        )
        if letter is not None and verdict.letter is not None:
            if verdict.do is Do.RELEASE:
                self._replays.release(entry, letter)
            elif verdict.do is Do.REPLAY:
                self._writer.put(entry, [self._letters.set(verdict.letter)])  # what a failure finds before
                self._writer.refer(entry, verdict.letter.record)  # maybe another object, by an edit
                if why_not := self._replay(arrival, verdict.letter):
                    verdict = refused(letter, operation, now_ms, why_not)
        self._note(entry, asked, verdict.result, now)
        self._tell(entry, operation, asked.id_bytes, letter, verdict)

    def _note(self, entry: Entry, asked: PendingOperation, result: str, now: float) -> None:
        """The operation is settled, and never again."""
        self._writer.counters.operations += 1
        self._writer.put(entry, [Inbox.entry(asked.inbox_key, int(now * 1000), result.encode()[:200])])

    def _tell(
        self,
        entry: Entry,
        operation: Operation,
        id_bytes: bytes,
        letter: Letter | None,
        verdict: LetterDecision,
    ) -> None:
        if letter is not None and verdict.letter is not None:
            if verdict.do is not Do.REPLAY:
                self._writer.put(entry, [self._letters.set(verdict.letter)])
            done = self._letters.done(verdict.letter, operation, id_bytes, self._writer.now, verdict.result)
            entry.sends.append(done)
        log.info(
            "operation",
            operation=str(operation.kind),
            letter=operation.letter,
            who=operation.who,
            why=operation.why,
            result=verdict.result,
        )

    def _replay(self, arrival: Arrival, letter: Letter) -> str:
        """Stage a replay. Returns why it cannot be; empty when it is staged."""
        route = self._app.routes.get(letter.topic)
        if route is None:
            return f"nothing handles {letter.topic} any more"
        handler = self._app.taker(letter.handler, letter.topic)
        if handler is None:
            return self._take_anew(arrival, route, letter)
        try:
            arrival.envelope = checked(letter.record)
            arrival.message = unpacked(route, letter.record, arrival.envelope)
        except (PermanentError, UnknownSchema) as error:
            return f"it cannot be read: {error}"
        arrival.record = letter.record
        return self._replays.replay(arrival, handler, letter)

    def _take_anew(self, arrival: Arrival, route: BoundRoute, letter: Letter) -> str:
        """A message that no handler has given up goes to all that have not done it, as if it came now."""
        if letter.handler and (why := self._why_unknown(route, letter)):
            return f"there is no handler {letter.handler}, and it is not known who has done it: {why}"
        try:
            envelope = checked(letter.record)
            home = self._app.layout.partition_of(letter.key or b"")
            if route.outside and home != letter.partition:
                self._writer.forward(arrival.entry, letter.record, home)
                handlers: list[tuple[BoundHandler, bytes | None]] = []
            else:
                arrival.message = unpacked(route, letter.record, envelope)
                handlers = self._left(route, envelope, letter.partition)
        except UnknownSchema as error:
            return f"it cannot be read: {error}"
        except PermanentError as error:
            entry, record = arrival.entry, letter.record
            self._letters.write(entry, route, record, error, letter.handler, holds=letter.queue)
            return ""
        self._replays.release(arrival.entry, letter)
        changes, told = self._letters.succeeded(letter.record, letter.handler, self._writer.now)
        self._writer.put(arrival.entry, changes)
        arrival.entry.sends.extend(told)
        self._writer.counters.replayed += 1
        arrival.route, arrival.record, arrival.envelope, arrival.handlers = (
            route,
            letter.record,
            envelope,
            handlers,
        )
        return ""

    def _why_unknown(self, route: BoundRoute, letter: Letter) -> str:
        """Why the inbox does not tell which handlers have done a letter's message; empty when it does."""
        if not route.inbox:
            return f"{letter.topic} is not covered by the inbox"
        if letter.edited:
            return "it was edited, and has a new id"
        age = self._writer.now - min(letter.timestamp, letter.failed_at_ms) / 1000
        return "it is older than what the inbox keeps" if age > self._app.lane_options.inbox_retention else ""

    def _left(
        self, route: BoundRoute, envelope: Envelope, partition: int
    ) -> list[tuple[BoundHandler, bytes | None]]:
        """The handlers that have not done a message, marked in the inbox as about to do it."""
        if not route.inbox:
            return list(route.handlers_without_inbox)
        source = envelope.headers.get(SOURCE) or b""
        left: list[tuple[BoundHandler, bytes | None]] = []
        for handler in route.handlers:
            key = self._inbox.key(handler.name_bytes, source, envelope.id_bytes)
            own = prefix_of(partition) + key
            if self._overlay.get(INBOX, own) is None and not self._inbox.seen([own], self._writer.now)[0]:
                self._overlay.put(own, Change(INBOX, key, b""))
                left.append((handler, key))
        return left


def _asked_of(operation: Operation | HandlerOperation) -> bytes:
    """What stands in the inbox for a handler: people choose ids of commands, perhaps one for several."""
    if isinstance(operation, Operation):
        return OPERATIONS
    return OPERATIONS + f":{operation.kind}:{operation.handler}".encode()


def _is_about_a_handler(record: Record) -> bool:
    return (TYPE, HANDLER_OPERATION.encode()) in record.headers


def _understood(record: Record) -> Operation | HandlerOperation:
    """What a message asks for, no longer than need be. Raises what is in NO_JSON, and ValueError for
    a letter of another partition.
    """
    data = record.value or b""
    if _is_about_a_handler(record):
        command = decode_handler_operation(data)
        said = {name: capped(getattr(command, name), MAX_SAID) for name in ("handler", "who", "why")}
        return msgspec.structs.replace(command, **said)
    operation = decode_operation(data)
    parse_id(operation.letter, within=record.partition)
    said = {name: capped(getattr(operation, name), MAX_SAID) for name in ("who", "why", "job")}
    return msgspec.structs.replace(operation, **said)
