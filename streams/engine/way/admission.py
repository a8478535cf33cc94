"""Turn records into messages: decode them, forward misrouted ones, and drop duplicates for each handler."""

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
    """Admits messages to a lane: each gets an entry in the commit order."""

    def __init__(self, waiting: Waiting, inbox: Inbox, loops: Loops | None = None) -> None:
        """Without `loops`, the lane handles its own messages only after it has read them."""
        self.staging = waiting.staging
        self.waiting = waiting
        self._letters = waiting.letters
        self._inbox = inbox
        self.loops = loops
        self._app = waiting.staging.app
        #: How many more messages with a payload to fetch this batch may take.
        self._free = 0

    def take(self, batch: Batch, room: int, now: float) -> tuple[list[Fresh], int]:
        """Take records in order, at most `room` of those that run in the background. Returns the messages to
        dispatch, and how many records were taken. `now` in epoch seconds.
        """
        tp, records, end = batch
        topic, partition = tp
        source = self._app.repartitions.get(topic)
        route = self._app.routes[topic if source is None else source]
        self._free = room
        most = min(len(records), room) if route.is_async else len(records)
        home = self._app.layout.home_of(partition)
        added = home != partition and route.source is None
        arrivals: list[Fresh] = []
        offsets: list[int] = [record.offset for record in records]
        offsets.append(end)
        for taken, record in enumerate(records):
            if taken == most:
                break
            entry = Entry(home, tp, offsets[taken + 1], size_of(record), record.key or b"", offsets[taken])
            entry.timestamp = record.timestamp
            if not self._take(entry, route, record, arrivals, now, added=added, source=source):
                most = taken
                break
        if route.inbox:
            self._check_inbox(route, home, arrivals, now)
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
        """Add an entry for a record to the commit order. False: its payload must be fetched, and there is no
        room for that yet.

        A record from a partition that someone has `added` to the topic is forwarded undecoded to the
        partition of its key; without a key, to the entry's. If it cannot be forwarded, it becomes a dead
        letter in the entry's partition. A record that was forwarded is restored to what it was in `source`.
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
                if route.source is not None and type(record) is not Damaged:
                    record = route.source.identified(record)
                envelope = checked(route, record)
                home = entry.partition
                if route.outside and source is None:
                    home = self._app.layout.partition_of(entry.key or b"")
            if added or home != entry.partition:
                self.staging.forward(entry, record, home, now)
                entry.done = True
            elif not record.value and envelope.headers.get(DATAREF) is not None and route.source is None:
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
            if source != before:  # most have the same source
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
