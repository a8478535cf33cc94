"""The staging area of a lane: staged changes on top of its local store, which has the committed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from streams.engine.staging.arrival import Counters
from streams.engine.staging.changelog import Staged, writes_of
from streams.engine.staging.changes import IDS_BYTES, Change, Writes
from streams.engine.staging.commit_order import CommitOrder
from streams.engine.staging.entry import Entry
from streams.engine.staging.payloads import reference_in
from streams.engine.staging.refusals import Refusals
from streams.engine.staging.repartition import with_origin
from streams.engine.staging.unreadable import UnreadableRows
from streams.errors import TooLarge, Undecodable, UnknownSchema
from streams.model.application import Application
from streams.model.bound import BoundHandler, BoundTable
from streams.model.codecs import decode_row
from streams.model.envelope import record_size
from streams.ports import TP, Content, Outgoing, Record, Sendable, Store


class StagingArea:
    """Staged rows, staged messages and their order, from one opening of a lane to the next. Every change of a
    lane's state goes through `put`; `apply` writes it to the store after its commit.

    Attributes:
        app, store: the lane's application and local store. Only `apply` writes committed changes to it.
        writes: turns changes into writes to the store.
        counters: what the lane has handled, over all its openings.
        refusals: messages that the broker refuses, over all its openings.
        order: the commit order, with all entries that are not committed.
        unreadable: stored rows that cannot be read.
        claimed: local inbox keys of messages that were taken and are not committed.
    """

    def __init__(
        self, app: Application, store: Store, writes: Writes, counters: Counters, refusals: Refusals
    ) -> None:
        options = app.lane_options
        self.app = app
        self.store = store
        self.writes = writes
        self.counters = counters
        self.refusals = refusals
        ids_bytes = min(IDS_BYTES, options.max_message_bytes // 2)
        self.order = CommitOrder(app.layout, ids_bytes, options.max_ahead)
        self.unreadable = UnreadableRows()
        self.claimed: set[bytes] = set()
        self._bucket = "" if app.claims is None else app.claims.bucket
        self._rows: dict[str, dict[bytes, Change]] = {}
        #: During a trial (see `begin_trial`), the change that each of its changes replaced.
        self._before: list[tuple[bytes, str, Change | None]] | None = None

    # -- read -------------------------------------------------------------------------------------------

    def get(self, table: str, local: bytes) -> Change | None:
        """The newest staged change of a local key. A value of None is a deletion."""
        rows = self._rows.get(table)
        return None if rows is None else rows.get(local)

    def value(self, table: str, local: bytes) -> bytes | None:
        """The newest value of a local key, staged or committed; None: there is none."""
        staged = self.get(table, local)
        return self.store.get(table, local) if staged is None else staged.value

    def rows_for(self, handler: BoundHandler, base: bytes, message: Any) -> list[Any]:
        """The rows that a handler asks for, staged or committed. `base` is the prefix of their local keys.
        Raises RowUnreadable or RowSchemaUnknown.
        """
        found: list[Any] = []
        for _, table, subkey, any_row in handler.rows:
            if any_row:
                found.append(partial(self._read_sub, table, base))
            else:
                local = base if subkey is None else base + subkey(message).encode()
                found.append(self._read(table, local))
        return found

    def _read_sub(self, table: BoundTable, base: bytes, subkey: str) -> Any:
        return self._read(table, base + subkey.encode())

    def _read(self, table: BoundTable, local: bytes) -> Any:
        staged = self.get(table.name, local)
        if staged is not None:
            return staged.row
        data = self.store.get(table.name, local)
        if data is None:
            return None
        try:
            row = decode_row(table.codec, data)
        except (Undecodable, UnknownSchema) as error:
            raise self.unreadable.row(table.name, local, error) from error
        if self.unreadable.found:
            self.unreadable.forget(table.name, local)
        return row

    def changes(self, table: str) -> Iterator[tuple[bytes, Change]]:
        """The newest staged changes of a table, each with its local key."""
        return iter(self._rows.get(table, {}).items())

    def __len__(self) -> int:
        return len(self.claimed) + sum(map(len, self._rows.values()))

    # -- stage ------------------------------------------------------------------------------------------

    def show(self, local: bytes, change: Change) -> None:
        """Let later reads see a change."""
        rows = self._rows.get(change.table)
        if rows is None:
            rows = self._rows[change.table] = {}
        rows[local] = change

    def put(self, entry: Entry, changes: Sequence[Change]) -> None:
        """Add changes to an entry, and let later reads see them."""
        prefix = entry.prefix
        for change in changes:
            local = change.local = prefix + change.key
            if self._before is not None:
                self._before.append((local, change.table, self.get(change.table, local)))
            self.show(local, change)
            entry.changes.append(change)

    def append(
        self,
        partition: int,
        changes: Sequence[Change],
        sends: Sequence[tuple[TP, Sendable]] = (),
        key: bytes | None = None,
    ) -> Entry:
        """Stage changes that no message caused, in an entry of their own. It is committed after all earlier
        entries of its key; without a key, after all earlier entries and before all later ones.
        """
        return self.append_entry(Entry(partition, None, 0, 0, key), changes, sends)

    def append_entry(
        self, entry: Entry, changes: Sequence[Change], sends: Sequence[tuple[TP, Sendable]] = ()
    ) -> Entry:
        """Stage changes that no message caused, in the given entry."""
        self.put(entry, changes)
        entry.sends.extend(sends)
        entry.done = True
        self.order.add(entry)
        return entry

    def refer(self, entry: Entry, record: Content, now: float) -> None:
        """Keep the object that a record refers to, if any, for the claim retention from `now` on."""
        self.put(entry, self.references(record, now))

    def references(self, record: Content, now: float) -> Sequence[Change]:
        """The changes that `refer` makes."""
        if not self._bucket or record.value:
            return ()
        change = reference_in(dict(record.headers), self._bucket, now)
        return () if change is None else (change,)

    def forward(self, entry: Entry, record: Record, home: int, now: float) -> None:
        """Forward a misrouted message to the partition of its key. It goes through a repartition topic, not
        the topic that it came from, because others read that one (docs/adr/0076). Raises TooLarge.
        """
        size = record_size(record.key, record.value, record.headers)
        if size > self.app.lane_options.max_message_bytes:  # it came compressed
            raise TooLarge(f"it is to be sent on to partition {home}, and has {size} bytes uncompressed")
        self.counters.misrouted += 1
        tp = TP(self.app.layout.repartition(record.topic), home)
        entry.sends.append((tp, Outgoing(record.key, record.value, with_origin(record))))
        self.refer(entry, record, now)

    # -- take back --------------------------------------------------------------------------------------

    def begin_trial(self, entry: Entry) -> tuple[int, int]:
        """Record what is staged from now on. Returns what `take_back` needs."""
        self._before = []
        return len(entry.changes), len(entry.sends)

    def end_trial(self) -> None:
        """Keep what was staged since `begin_trial`."""
        self._before = None

    def take_back(self, entry: Entry, mark: tuple[int, int]) -> None:
        """Drop what was staged for an entry since `begin_trial`."""
        assert self._before is not None
        for local, table, change in reversed(self._before):
            if change is not None:
                self._rows[table][local] = change
            else:
                del self._rows[table][local]
        self._before = None
        del entry.changes[mark[0] :], entry.sends[mark[1] :]

    # -- commit -----------------------------------------------------------------------------------------

    def apply(self, staged: Staged, ends: Mapping[TP, int], began: float) -> None:
        """Write a committed transaction to the store. `ends` are the ends of the partitions that it wrote to,
        `began` is when it began, in epoch seconds.
        """
        # A lane that can commit was the only writer until then, so the changelogs have no other changes.
        # The store is current as of `began`, not now: the process may have been frozen since, for days.
        self.store.apply(
            writes_of(staged, self.writes),
            {tp: end for tp, end in ends.items() if tp.topic in self.app.changelogs},
            current_at=began if ends else None,
        )

    def forget(self, staged: Staged) -> None:
        """Drop the staged rows of a transaction that the store has now, except those changed again since."""
        for prefix, pairs in staged.ids.items():
            for key, _ in pairs:
                self.claimed.discard(prefix + key)
        for table, changes in staged.changes.items():
            rows = self._rows.get(table, {})  # source positions are staged, but never read back
            for key, change in changes.items():
                if rows.get(key) is change:
                    del rows[key]
