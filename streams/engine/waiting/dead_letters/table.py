"""Dead letters of a lane: record, row and log entry are staged for the same transaction."""

from __future__ import annotations

from collections import Counter

import structlog
from msgspec.structs import replace

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Arrival
from streams.engine.staging.changes import Change
from streams.engine.staging.entry import Entry
from streams.engine.staging.inbox import inbox_entry
from streams.engine.waiting.dead_letters.bursts import Bursts
from streams.engine.waiting.dead_letters.record import ROOM, dead_letter, retry_copy
from streams.engine.waiting.dead_letters.row import (
    Letter,
    LetterState,
    capped,
    decode_letter,
    encode_letter,
    failed_again,
    key_of,
    letter_id,
    letter_places,
    local_key,
    new_letter,
)
from streams.errors import text_of
from streams.model.bound import BoundRoute
from streams.model.envelope import CORRELATION, ID, rfc3339
from streams.model.layout import DEAD_LETTERS
from streams.model.operations import Done, Operation, encode_done
from streams.ports import TP, Headers, Outgoing, Record

log = structlog.get_logger(__name__)

#: A record, and the partition that it goes to.
Send = tuple[TP, Outgoing]
#: Maximum bytes of a text in the log of operations and in log lines.
SHOWN = 1024


class DeadLetters:
    """Reads the rows of dead letters, and stages their changes."""

    def __init__(self, staging: StagingArea, bursts: Bursts) -> None:
        app = staging.app
        self.staging = staging
        self._bursts = bursts
        self._group = app.layout.app_id
        self._partitions = app.layout.partitions
        self._limit = app.lane_options.max_message_bytes
        self._max_replays = app.lane_options.max_replays
        self._log = TP(app.layout.operations_log, 0)
        #: By source, the number of records that became dead letters when they were read, since the lane
        #: opened: without those that had waited, and without replays.
        self.of_sources: Counter[str] = Counter()

    def get(self, local: bytes) -> Letter | None:
        """The letter under a local key, staged or committed; None: there is none that can be read."""
        staged = self.staging.get(DEAD_LETTERS, local)
        if staged is not None:
            return staged.row if isinstance(staged.row, Letter) else None
        data = self.staging.store.get(DEAD_LETTERS, local)
        try:
            return None if data is None else decode_letter(data)
        except (ValueError, IndexError) as error:
            what = f"the row of dead letter {letter_id(local)}"
            follows = "it exists only in its topic of dead letters, and cannot be replayed from here"
            self.staging.unreadable.own(DEAD_LETTERS, local, what, error, follows)
            return None

    def set(self, letter: Letter) -> Change:
        """The change that writes a letter's row."""
        key = key_of(letter, self._partitions)
        return Change(DEAD_LETTERS, key, encode_letter(letter, self._limit + ROOM - len(key)), letter)

    def remove(self, letter: Letter) -> Change:
        """The change that deletes a letter's row."""
        return Change(DEAD_LETTERS, key_of(letter, self._partitions), None)

    def give_up(
        self,
        arrival: Arrival,
        error: BaseException,
        now: float,
        *,
        holds: bytes = b"",
    ) -> None:
        """Stage a message as a dead letter of one handler, and mark its id as handled. `holds` is the name of
        the queue that the letter holds.
        """
        name, tries = arrival.handler.name, arrival.attempt.tries
        self.write(arrival.entry, arrival.route, arrival.record, error, name, now, tries, holds=holds)
        if arrival.inbox_key is not None:
            arrival.entry.ids.append(inbox_entry(arrival.inbox_key, int(now * 1000), b"dead letter"))

    @staticmethod
    def mirror(arrival: Arrival, error: BaseException, tier: int, due: float) -> None:
        """Copy a message that waits for a retry to the retry topic of its `tier`, for people to read. Tiers
        beyond the last retry topic get no copy. `due` in epoch seconds.
        """
        topics = arrival.route.retries
        if tier <= len(topics):
            arrival.entry.sends.append((TP(topics[tier - 1], 0), retry_copy(arrival, error, due)))

    def write(
        self,
        entry: Entry,
        route: BoundRoute,
        record: Record,
        error: BaseException,
        handler: str,
        now: float,
        attempts: int = 0,
        *,
        holds: bytes = b"",
    ) -> None:
        """Stage a record as a dead letter: a record for the topic of dead letters, and a row for operators.
        `handler` is empty if no handler saw it.
        """
        staging = self.staging
        staging.counters.dead_letters += 1
        if route.source is not None and entry.tp is not None and entry.tp.topic == route.topic:
            self.of_sources[route.topic] += 1
        self._bursts.add(handler, record.key, type(error).__name__, now)
        letter = dead_letter(
            record,
            error,
            group=self._group,
            handler=handler,
            now=now,
            limit=self._limit,
            retries=max(attempts - 1, 0),
        )
        entry.sends.append((TP(route.dead_letters, 0), letter))
        changes, sends = self._row_of(
            record, error, home=entry.partition, handler=handler, attempts=attempts, now=now, holds=holds
        )
        staging.put(entry, changes)
        entry.sends.extend(sends)
        staging.refer(entry, record, now)
        log.warning(
            "dead_letter",
            handler=handler,
            error=f"{type(error).__name__}: {capped(text_of(error), SHOWN)}",
            attempts=attempts,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            **ids_of(record),
        )

    def _row_of(
        self,
        record: Record,
        error: BaseException,
        *,
        home: int,
        handler: str,
        attempts: int,
        now: float,
        holds: bytes,
    ) -> tuple[list[Change], list[Send]]:
        """The change of a letter's row. After a failed replay, the letter counts it, and a record for the log
        of operations comes along.
        """
        now_ms = int(now * 1000)
        letter = new_letter(
            record,
            error,
            handler=handler,
            attempts=attempts,
            now_ms=now_ms,
            limit=self._limit,
            queue=holds,
            home=-1 if record.partition % self._partitions == home else home,
        )
        before = self.get(local_key(letter, self._partitions))
        if before is not None and before.timestamp != letter.timestamp:
            # The other letter is of a topic that was deleted and created again: both are kept.
            letter = replace(letter, stamped=True)
            before = self.get(local_key(letter, self._partitions))
        if before is None or before.state is not LetterState.REPLAYING:
            return [self.set(letter)], []
        letter = failed_again(before, letter, now_ms=now_ms, max_replays=self._max_replays)
        return [self.set(letter)], [self._ended(letter, now, letter.history[-1].result)]

    def succeeded(self, entry: Entry, record: Record, handler: str, now: float) -> None:
        """Remove the row of a letter after a successful replay. The log of operations records it."""
        self.staging.counters.replayed += 1
        letter = self._letter_of(record, handler, entry.partition)
        if letter is not None:
            self.staging.put(entry, [self.remove(letter)])
            entry.sends.append(self._ended(letter, now, "succeeded"))

    def lacks(self, record: Record, handler: str, home: int) -> bool:
        """Whether there is no letter of a record and handler, not even an unreadable row. `home` is the
        partition in which the record is handled.
        """
        places = letter_places(record, handler, home)
        return self._letter_of(record, handler, home) is None and not any(
            self.staging.store.get(DEAD_LETTERS, place) for place in places
        )

    def _letter_of(self, record: Record, handler: str, home: int) -> Letter | None:
        """The letter of a record. A letter of a deleted topic with the same place does not count."""
        for place in letter_places(record, handler, home):
            letter = self.get(place)
            if letter is not None and letter.timestamp == record.timestamp:
                return letter
        return None

    def _ended(self, letter: Letter, now: float, result: str) -> Send:
        begun = letter.history[-2 if result != "succeeded" else -1 :][:1]
        who, why, at_ms = (begun[0].who, begun[0].why, begun[0].at_ms) if begun else ("", "", int(now * 1000))
        return self._operation_record(
            letter, "replayed", "", who=who, why=why, asked_ms=at_ms, now=now, result=result
        )

    def done(self, letter: Letter, operation: Operation, message_id: bytes, now: float, result: str) -> Send:
        """The record of an operation for the log of operations."""
        return self._operation_record(
            letter,
            str(operation.kind),
            message_id.decode("utf-8", "replace"),
            who=operation.who,
            why=operation.why,
            asked_ms=operation.at_ms,
            now=now,
            result=result,
            job=operation.job,
        )

    def _operation_record(
        self,
        letter: Letter,
        operation: str,
        operation_id: str,
        *,
        who: str,
        why: str,
        asked_ms: int,
        now: float,
        result: str,
        job: str = "",
    ) -> Send:
        ident = letter_id(local_key(letter, self._partitions))
        message_id = dict(letter.headers).get(ID) or b""
        done = Done(
            operation=operation,
            id=operation_id,
            letter=ident,
            who=capped(who, SHOWN),
            why=capped(why, SHOWN),
            asked_at=rfc3339(asked_ms / 1000),
            at=rfc3339(now),
            result=capped(result, SHOWN),
            state=str(letter.state),
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
            key=(letter.key or b"")[:SHOWN].decode("utf-8", "replace"),
            handler=letter.handler,
            message_id=message_id[:SHOWN].decode("utf-8", "replace"),
            job=job,
        )
        return self._log, Outgoing(ident.encode(), encode_done(done), [])


def ids_of(record: Record) -> dict[str, str]:
    """The ids of a record for log lines, as far as it has them."""
    headers: Headers = record.headers
    by_name = {name: value or b"" for name, value in headers}
    found = {"message_id": by_name.get(ID), "correlation_id": by_name.get(CORRELATION), "key": record.key}
    return {name: value[:SHOWN].decode("utf-8", "replace") for name, value in found.items() if value}
