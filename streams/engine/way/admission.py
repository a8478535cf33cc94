"""From a record to a message: decoded, at home in its partition, and new to the handlers that it is for."""

from __future__ import annotations

from collections.abc import Sequence

from streams.engine.staging.arrival import Fresh
from streams.engine.staging.entry import Entry, size_of
from streams.engine.staging.inbox import Inbox
from streams.engine.staging.keys import prefix_of
from streams.engine.staging.loops import Loops
from streams.engine.staging.payloads import checked, decoded, require_reference
from streams.engine.staging.repartition import original
from streams.engine.waiting.waiting import Waiting
from streams.errors import PermanentError, UnknownSchema, Unreadable
from streams.model.bound import BoundHandler, BoundRoute
from streams.model.claim import DATAREF
from streams.model.envelope import SOURCE
from streams.ports import Batch, Damaged, Record


class MessageAdmission:
    """Admits messages to a lane: each gets its place in the order, or its end."""

    def __init__(self, waiting: Waiting, inbox: Inbox, loops: Loops | None = None) -> None:
        """Without `loops` the lane handles none of its own messages before it has read them."""
        self.staging = waiting.staging
        self.waiting = waiting
        self._letters = waiting.letters
        self._inbox = inbox
        self.loops = loops
        self._app = waiting.staging.app
        #: Messages that may still be taken whose payload is fetched.
        self._free = 0

    def take(self, batch: Batch, room: int, now: float) -> tuple[list[Fresh], int]:
        """Take records in order, while there is room for those that run in the background. Returns what is
        to be dispatched, and how many records were taken. `now` in epoch seconds.
        """
        tp, records, end = batch
        topic, partition = tp
        source = self._app.repartitions.get(topic)
        route = self._app.routes[topic if source is None else source]
        self._free = room
        most = min(len(records), room) if route.is_async else len(records)
        home = self._app.layout.home_of(partition)
        arrivals: list[Fresh] = []
        offsets: list[int] = [record.offset for record in records]
        offsets.append(end)
        for taken, record in enumerate(records):
            if taken == most:
                break
            entry = Entry(home, tp, offsets[taken + 1], size_of(record), record.key or b"", offsets[taken])
            entry.timestamp = record.timestamp
            if not self._take(entry, route, record, arrivals, now, added=home != partition, source=source):
                most = taken
                break
        if route.inbox:
            self._check_inbox(route, partition, arrivals, now)
        return arrivals, most

    def _take(
        self,
        entry: Entry,
        route: BoundRoute,
        record: Record,
        arrivals: list[Fresh],
        now: float,
        *,
        added: bool,
        source: str | None,
    ) -> bool:
        """Give a record its place in the order; False when its payload is to be fetched, and it has to wait
        for others. A record of a partition that somebody has `added` goes on as it is to the one of its key,
        where it is looked at; without a key to the entry's. What cannot go on is a dead letter of that one.
        One that was sent on is again what it was in its `source`.
        """
        try:
            if source is not None and type(record) is not Damaged:
                record = original(record, source)
                entry.timestamp = record.timestamp
            if self.staging.refusals.found and (refused := self.staging.refusals.of(entry)) is not None:
                raise refused
            if added:
                if type(record) is Damaged:
                    raise Unreadable(record.why)
                home = entry.partition if record.key is None else self._app.layout.partition_of(record.key)
            else:
                envelope = checked(record)
                home = entry.partition
                if route.outside and source is None:
                    home = self._app.layout.partition_of(entry.key or b"")
            if added or home != entry.partition:
                self.staging.forward(entry, record, home, now)
                entry.done = True
            elif not record.value and envelope.headers.get(DATAREF) is not None:
                if not self._free:
                    return False
                require_reference(route, envelope)
                self._free -= 1
                self.staging.refer(entry, record, now)
                arrivals.append(Fresh(entry, route, record, envelope, None, now))
            else:
                message = decoded(route, record, envelope)
                arrivals.append(Fresh(entry, route, record, envelope, message, now))
        except UnknownSchema as error:
            self.waiting.log_unknown(error)
            self.staging.refer(entry, record, now)
            unread = Fresh(entry, route, record, envelope, None, now)
            unread.error = error
            arrivals.append(unread)
        except PermanentError as error:
            self._letters.write(entry, route, record, error, "", now)
            entry.done = True
        if route.loops and self.loops is not None and not entry.done:
            self.loops.add_read(record, envelope.id_bytes)
        self.staging.order.add(entry)
        return True

    def _check_inbox(self, route: BoundRoute, partition: int, arrivals: Sequence[Fresh], now: float) -> None:
        """Drop handlers that have seen the message; claim its id for the others, in memory.

        The inbox record is committed with what a handler decides.
        """
        keys: list[bytes] = []
        prefixes: list[bytes] = []
        before: bytes | None = None
        for arrival in arrivals:
            source = arrival.envelope.headers.get(SOURCE) or b""
            if source != before:  # of many it is the same
                prefixes = [self._inbox.prefix(each.name_bytes, source) for each in route.handlers]
                before = source
            keys += [prefix + arrival.envelope.id_bytes for prefix in prefixes]
        new = self._inbox.take(self.staging, prefix_of(partition), keys, now)
        at = 0
        for arrival in arrivals:
            handlers: list[tuple[BoundHandler, bytes | None]] = []
            for handler in route.handlers:
                if new[at]:
                    handlers.append((handler, keys[at]))
                else:
                    self.staging.counters.duplicates += 1
                at += 1
            arrival.handlers = tuple(handlers)
