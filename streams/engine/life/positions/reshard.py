"""Gives an application a multiple of its partitions: copies its rows into another set of topics, under
another application id (docs/adr/0067-reshard.md).

Each transaction also commits how far the copy is, and all use one transactional id. So the next run goes on
where a killed one stopped, and fences one that still runs. No lane of either application opens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from streams.engine.life.positions.checks import lane_rows
from streams.engine.life.positions.cuts import CLOSED, Cuts
from streams.engine.life.positions.identity import decode
from streams.engine.life.positions.reshard_logs import Digests, Logs, groups, later
from streams.engine.life.positions.reshard_rows import RowMover
from streams.engine.life.positions.review import is_changelog
from streams.engine.staging.keys import IDENTITY, POSITION, position_of
from streams.engine.staging.position import decode_position
from streams.engine.way.topics import unhandled_in
from streams.errors import ReshardRefused
from streams.model.envelope import record_size
from streams.model.layout import INBOX, LANE, Layout
from streams.ports import TP, Cluster, Faults, Outgoing, Record, Transactions
from streams.system import NoFaults
from streams.units import MIB

#: Approximate maximum records and bytes of one transaction.
_RECORDS, _BYTES = 2000, 4 * MIB
_SCHEMA = b"schema:"


class Stage(StrEnum):
    """How far a reshard is."""

    NEW = "not begun"
    BEGUN = "begun"
    DONE = "done"


@dataclass(slots=True)
class _Pending:
    """Records and offsets for the next transaction."""

    records: dict[TP, list[Outgoing]] = field(default_factory=dict)
    offsets: dict[TP, int] = field(default_factory=dict)
    count: int = 0
    size: int = 0

    def add(self, tp: TP, outgoing: Outgoing) -> None:
        self.records.setdefault(tp, []).append(outgoing)
        self.count += 1
        self.size += record_size(outgoing.key, outgoing.value, outgoing.headers)

    @property
    def full(self) -> bool:
        return self.count >= _RECORDS or self.size >= _BYTES


class Reshard:
    """A reshard of one application. Call `begin`, `copy`, `verify` and `settle`, then add the new partitions
    to the message topics, then call `end`. After a run was killed, start with `begin` again.

    Raises ReshardRefused, ClusterUnavailable or ChangelogDamaged, and Fenced or TransactionFailed if another
    run has to continue.
    """

    def __init__(
        self, old: Layout, new: Layout, sources: Iterable[str], cluster: Cluster, faults: Faults | None = None
    ) -> None:
        """`sources` are the topics that the application handles."""
        if old.app_id == new.app_id or new.partitions <= old.partitions or new.partitions % old.partitions:
            raise ReshardRefused(
                f"{new.partitions} partitions under {new.app_id}: give another application id, and a multiple"
                f" of the {old.partitions} partitions that {old.app_id} has"
            )
        self._old, self._new = old, new
        handled = list(sources)
        self._sources = [*handled, *map(old.repartition, handled), old.operations]
        self._cluster = cluster
        self._faults = faults or NoFaults()
        self._mover = RowMover(old, new)
        self._logs = Logs(cluster, [old.changelog(INBOX), new.changelog(INBOX)])
        self._producer: Transactions | None = None
        #: The application's topics that the cluster has.
        self._topics: Collection[str] = ()
        #: Texts why lanes may not open: of the old application; of the new one until all is copied; and then
        #: of the new one until message topics have their new partitions.
        self._left = (
            f"{old.app_id} was resharded: set STEADFAUST_APP_ID={new.app_id} and"
            f" STEADFAUST_PARTITIONS={new.partitions}"
        )
        self._entered = f"{new.app_id} is not complete: run `steadfaust reshard` again until it finishes"
        self._settled = f"{new.app_id} lacks partitions of its message topics: run `steadfaust reshard` again"

    # -- before ---------------------------------------------------------------------------------------

    async def progress(self) -> Stage:
        """How far the reshard is. Raises ReshardRefused if the old application was resharded into another
        one, or if the new one is already in use.
        """
        lanes = self._old.changelog(LANE)
        there = (await self._cluster.identity([lanes])).partitions.get(lanes)
        if there != self._old.partitions:
            raise ReshardRefused(
                f"{lanes} has {there or 'no'} partitions, and STEADFAUST_PARTITIONS is"
                f" {self._old.partitions}: set it and STEADFAUST_APP_ID as the workers had them"
            )
        left, entered = await self._closed(self._old), await self._closed(self._new)
        if left and left != self._left:
            raise ReshardRefused(left)
        if not left and (entered or await self._used()):
            raise ReshardRefused(
                f"{self._new.app_id} has topics already: delete those, or name another application id"
            )
        if not left:
            return Stage.NEW
        return Stage.BEGUN if entered else Stage.DONE

    async def tables(self) -> list[str]:
        """Names of the tables that have a changelog, including built-in ones."""
        lanes = [TP(self._old.changelog(LANE), number) for number in range(self._old.partitions)]
        rows = await lane_rows(self._cluster, lanes)
        recorded = {topic for row in rows.values() for topic in decode(row.get(IDENTITY)).topics}
        handled = {
            position_of(key[1:], tp.partition).topic
            for tp, row in rows.items()
            for key in row
            if key[:1] == POSITION
        }
        self._topics = set((await self._cluster.identity(recorded | handled)).topics)
        begin, end = len(self._old.app_id) + 1, -len("-changelog")
        return sorted(topic[begin:end] for topic in self._topics if is_changelog(self._old, topic))

    async def check_drained(self) -> None:
        """Raises ReshardRefused while messages are left to handle."""
        numbers = (await self._cluster.identity(self._sources)).partitions
        tps = [TP(topic, number) for topic, count in numbers.items() for number in range(count)]
        if left := await unhandled_in(self._cluster, self._old.app_id, tps):
            found = ", ".join(f"{count} of {topic}" for topic, count in sorted(left.items()))
            raise ReshardRefused(
                f"messages are left to handle: {found}. Stop what sends them, and let the workers of"
                f" {self._old.app_id} handle them"
            )

    # -- the run --------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Close both applications, and fence all owners of lanes. The topics of the new one have to exist.

        Raises ReshardRefused if messages are left to handle, and then leaves both applications open.
        """
        self._producer = producer = self._cluster.transactions(f"{self._new.app_id}-reshard")
        await producer.start()
        is_new = await self.progress() is Stage.NEW
        if is_new:
            await self.check_drained()
            await self._close(left=self._left, entered=self._entered)
        cuts = Cuts(self._old, self._cluster)
        await cuts.look()
        await cuts.fence_all()
        if is_new:
            try:
                await self.check_drained()
            except ReshardRefused:
                await self._close(left=None, entered=None)
                raise

    async def copy(self, report: Callable[[int], None] = lambda _: None) -> None:
        """Copy all rows that earlier runs have not copied. After each full transaction, `report` is called
        with the number of records written so far.
        """
        tables = await self._changelogs()
        # Written with the rows, under the group of the new application.
        done = await self._cluster.committed(self._new.app_id, tables)
        written = 0
        for group in groups(await self._logs.ranges(tables)):
            todo = {tp: later(span, done.get(tp, 0)) for tp, span in group.items()}
            todo = {tp: span for tp, span in todo.items() if span}
            pending = _Pending()
            async for tp, record in self._logs.rows(todo, group):
                for moved, outgoing in self._moved(tables[tp], record):
                    pending.add(moved, outgoing)
                    pending.offsets |= self._positions(tables[tp], record)
                pending.offsets[tp] = record.offset + 1
                if pending.full:
                    await self._commit(pending)
                    written += pending.count
                    report(written)
                    pending = _Pending()
            pending.offsets |= {tp: span.stop for tp, span in todo.items()}
            if pending.offsets:
                await self._commit(pending)
                written += pending.count
                report(written)

    async def verify(self) -> dict[str, int]:
        """Compare each row with its copy. Returns the number of rows by table; for the inbox, the number of
        records, each of which has ids and goes to several partitions.
        """
        tables = await self._changelogs()
        counts = dict.fromkeys(sorted(tables.values()), 0)
        for group in groups(await self._logs.ranges(tables)):
            wanted, found = Digests(), Digests()
            copies: dict[TP, str] = {}
            for tp in group:
                name = self._new.changelog(tables[tp])
                copies |= {TP(name, n): tables[tp] for n in self._mover.spread(tp.partition)}
            async for tp, record in self._logs.rows(group, group):
                counts[tables[tp]] += 1
                for moved, outgoing in self._moved(tables[tp], record):
                    wanted.add(copies[moved], moved, outgoing.key, outgoing.value)
            ranges = await self._logs.ranges(copies)
            async for tp, record in self._logs.rows(ranges, ranges):
                found.add(copies[tp], tp, record.key, record.value)
            if wrong := found.first_difference(wanted):
                raise ReshardRefused(
                    f"{wrong.topic}[{wrong.partition}] is not what {self._old.app_id} has. Nothing was"
                    " opened: go back with --cancel, delete the new topics, and begin again"
                )
        return counts

    async def settle(self) -> None:
        """Mark the copy as complete, once no messages are left to handle. After this, `cancel` is refused."""
        if await self._closed(self._new) == self._entered:
            await self.check_drained()
            await self._close(left=self._left, entered=self._settled)

    async def end(self) -> None:
        """Copy the announced schemas, and open the new application. The old one stays closed."""
        pending = _Pending()
        async for _, record in self._logs.read(await self._logs.ranges([TP(self._old.announcements, 0)])):
            if (record.key or b"").startswith(_SCHEMA):
                pending.add(TP(self._new.announcements, 0), Outgoing(record.key, record.value, []))
        pending.add(TP(self._new.announcements, 0), Outgoing(CLOSED, None, []))
        await self._commit(pending)

    async def cancel(self) -> None:
        """Open the old application again. The new one stays closed, and someone has to delete its topics."""
        self._producer = producer = self._cluster.transactions(f"{self._new.app_id}-reshard")
        await producer.start()
        if await self.progress() is not Stage.BEGUN:
            raise ReshardRefused(f"no reshard of {self._old.app_id} is under way")
        if await self._closed(self._new) == self._settled:
            raise ReshardRefused(f"all is copied, and topics may have new partitions: {self._settled}")
        await self._close(left=None, entered=self._entered)

    async def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            await self._producer.discard()

    # -- marks ----------------------------------------------------------------------------------------

    async def _closed(self, layout: Layout) -> str:
        if not (await self._cluster.identity([layout.announcements])).topics:
            return ""
        cuts = Cuts(layout, self._cluster)
        await cuts.look()
        return cuts.closed

    async def _close(self, *, left: str | None, entered: str | None) -> None:
        """Record why lanes of the old and of the new application may not open; None opens them again."""
        pending = _Pending()
        for layout, why in ((self._old, left), (self._new, entered)):
            value = None if why is None else why.encode()
            pending.add(TP(layout.announcements, 0), Outgoing(CLOSED, value, []))
        await self._commit(pending)

    async def _used(self) -> bool:
        tp = TP(self._new.changelog(LANE), 0)
        there = (await self._cluster.identity([tp.topic])).topics
        return bool(there) and (await self._cluster.end_offsets([tp]))[tp] > 0

    # -- rows -----------------------------------------------------------------------------------------

    async def _changelogs(self) -> dict[TP, str]:
        """The changelog partitions of the old application, each with its table."""
        numbers = range(self._old.partitions)
        return {TP(self._old.changelog(table), n): table for table in await self.tables() for n in numbers}

    def _moved(self, table: str, record: Record) -> list[tuple[TP, Outgoing]]:
        rows = self._mover.moved(table, record.partition, record.key, record.value or b"")
        found = [
            (TP(self._new.changelog(table), row.partition), Outgoing(row.key, row.value, [])) for row in rows
        ]
        return found if self._is_of_a_topic(table, record) else []

    def _positions(self, table: str, record: Record) -> dict[TP, int]:
        """The source position in a row, for the new application's group; empty for other rows."""
        if table != LANE or (record.key or b"")[:1] != POSITION:
            return {}
        position = decode_position(record.value or b"")
        return {position_of((record.key or b"")[1:], record.partition): position.offset}

    def _is_of_a_topic(self, table: str, record: Record) -> bool:
        """False for a position in a topic that no longer exists. The cluster would not accept it."""
        return all(tp.topic in self._topics for tp in self._positions(table, record))

    async def _commit(self, pending: _Pending) -> None:
        assert self._producer is not None
        await self._producer.begin()
        await self._faults.reach("begun")
        if pending.records:
            await self._producer.send(pending.records)
        await self._faults.reach("sent")
        if pending.offsets:
            await self._producer.send_offsets(pending.offsets, self._new.app_id)
        await self._faults.reach("offsets_sent")
        await self._producer.commit()
        await self._faults.reach("committed")
