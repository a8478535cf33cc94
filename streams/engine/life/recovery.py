"""Recovers a lane's store from its changelogs, finds the source positions, and handles failed stores.

Lanes use it when they open, standbys all the time. Recovery reads up to the high watermark with a
read_committed reader: the last stable offset may lie before records that are already committed (KAFKA-10167).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from streams.engine.life.positions.checks import require_rows, require_same_changelogs
from streams.engine.life.positions.identity import Recorded, copy_of, note_of
from streams.engine.life.positions.log_cuts import log_mark, require_changelogs
from streams.engine.staging.changes import POSITIONS, Writes, unfollow
from streams.engine.staging.keys import position_key
from streams.engine.staging.log_marks import Mark
from streams.engine.staging.position import Range, decode_position
from streams.errors import (
    ChangelogDamaged,
    ClusterUnavailable,
    PositionLost,
    PositionsDisagree,
    StoreBroken,
    StoreFailed,
    TopicGone,
)
from streams.model.application import Application
from streams.model.layout import INBOX
from streams.model.policy.freshness import Freshness, is_too_old
from streams.ports import TP, Batch, Clock, Cluster, Damaged, Ports, Reader, Store, Stores, Write

log = structlog.get_logger(__name__)

#: Seconds without any record after which recovery gives up and the lane opens again.
STALLED = 30.0
FETCH_RECORDS = 5000


def open_store(stores: Stores, lane: int, *, followed: bool) -> Store:
    """Open a lane's store. A damaged one is replaced by an empty one, which recovery fills. `followed` says
    whether changes of its rows will be marked. Raises StoreUnavailable, and then removes nothing.
    """
    try:
        store = stores.open(lane)
    except StoreBroken as error:
        log.warning("store_broken", lane=lane, error=str(error), action="removed, rebuilt from the changelog")
        stores.destroy(lane)
        store = stores.open(lane)
    try:
        if not followed:
            unfollow(store)
    except BaseException:
        store.close()
        raise
    return store


def changelog_partitions(app: Application, lane: int) -> dict[TP, str]:
    """The changelog partitions of a lane, each with its table."""
    return {
        TP(topic, partition): table
        for topic, table in app.changelogs.items()
        for partition in app.layout.partitions_of(lane)
    }


def restore(
    store: Store,
    writes: Writes,
    tables: Mapping[TP, str],
    batches: Iterable[Batch],
    epoch: Callable[[TP], int],
    accepted: Mapping[TP, int],
) -> int:
    """Write changelog records to the store with their positions and leader epochs. Returns the number of
    records. Does not mark the store as current, because the ends of the changelogs are not known here.
    `accepted` is how often an operator has accepted a cut of each changelog. Raises ChangelogDamaged for a
    record that cannot be read, because it may be a row.
    """
    changes: list[Write] = []
    positions: dict[TP, int] = {}
    records = 0
    for batch in batches:
        for record in batch.records:
            if type(record) is Damaged:
                raise ChangelogDamaged(f'{record.why}. See docs/operating.md, "A changelog is damaged".')
        pairs = ((record.key or b"", record.value) for record in batch.records)
        changes.extend(writes.of(tables[batch.tp], batch.tp.partition, pairs))
        positions[batch.tp] = batch.next_offset
        records += len(batch.records)
    if positions:
        changes += [log_mark(tp, Mark(epoch(tp), at, accepted[tp])) for tp, at in positions.items()]
        store.apply(changes, positions)
    return records


class Copying(NamedTuple):
    """The start of a recovery: what to read to bring a store to the ends of its changelogs.

    Attributes:
        positions: the offset from which to read each changelog partition.
        ends: their end offsets when asked.
        freshness: the store's freshness, which expects these ends.
        accepted: how often an operator has accepted a cut of each changelog partition.
    """

    positions: dict[TP, int]
    ends: dict[TP, int]
    freshness: Freshness
    accepted: dict[TP, int]


async def start_positions(
    app: Application, store: Store, tables: Mapping[TP, str], ports: Ports, *, fenced: bool = False
) -> Copying:
    """Prepare to bring a store up to date. Wipes a store that cannot be trusted. Afterwards `copy_of` returns
    the ids of the changelogs. `fenced` says that no transaction of the lane is under way.

    Raises TopicGone, TopicRecreated, LogCut if a changelog has lost records, and ChangelogDamaged if rows
    were deleted that the store lacks.
    """
    cluster, clock, delete_retention = ports.cluster, ports.clock, app.lane_options.delete_retention
    asked_at = clock.now()
    identity = await cluster.identity({tp.topic for tp in tables})
    if gone := sorted({tp.topic for tp in tables} - identity.topics.keys()):
        raise TopicGone(gone)
    begins = await cluster.begin_offsets(tables)
    await require_same_changelogs(store, cluster, tables, identity)
    commits = await cluster.commits(app.layout.app_id, tables)  # before the ends, which only grow
    ends = await cluster.end_offsets(tables)
    accepted, other = await require_changelogs(store, cluster, commits, ends, fenced=fenced)
    current_at = store.current_at()
    behind = [tp for tp in tables if 0 < store.position(tp) < begins[tp]]
    if current_at is None:  # written by an earlier version, with another time
        too_old = any(store.position(tp) for tp in tables)
    else:
        too_old = is_too_old(current_at, clock.now(), delete_retention)
    has = (lambda _: 0) if other or behind or too_old else store.position
    # Inbox records are deleted by retention anyway. Check before any wipe: this store may have the only copy.
    cut = {tp: begins[tp] for tp, table in tables.items() if table != INBOX and has(tp) < begins[tp]}
    await require_rows(cluster, tables, cut)
    if other:
        store.wipe()
    elif behind or too_old:
        # Tombstones may have been compacted away: what was deleted could come back (docs/adr/0002).
        age = None if current_at is None else clock.now() - current_at
        log.warning("store_too_old", seconds=age, action="wiped, rebuilt from the changelog")
        store.wipe()
    origin = Recorded(identity.cluster, dict(identity.topics))
    if store.current_at() is None:
        # An empty store has all records before the first offset.
        store.apply([note_of(origin)], {}, current_at=asked_at)
    elif copy_of(store) != origin:
        store.apply([note_of(origin)], {})
    freshness = Freshness(store.current_at() or asked_at, delete_retention)
    freshness.expect(asked_at, ends)
    positions = {tp: max(store.position(tp), begins[tp]) for tp in tables}
    return Copying(positions, ends, freshness, accepted)


async def touch(store: Store, cluster: Cluster, tables: Mapping[TP, str], clock: Clock) -> None:
    """Mark an idle owner's store as current, if it is, so that it is not rebuilt as too old.

    The store may be one offset short of each end, because a partition may end in a transaction marker.
    Raises ClusterUnavailable.
    """
    asked_at = clock.now()
    ends = await cluster.end_offsets(tables)
    if all(ends[tp] <= store.position(tp) + 1 for tp in tables):
        store.apply((), {}, current_at=asked_at)


async def recover(
    app: Application,
    lane: int,
    ports: Ports,
    store: Store,
    reader: Reader,
    writes: Writes,
    remaining: Callable[[int], None],
) -> int:
    """Bring the store to the end of the lane's changelogs. Returns the number of records read. Calls
    `remaining` with the number of offsets left.

    Raises TimeoutError if no record arrives for STALLED seconds, ClusterUnavailable if a changelog is cut
    meanwhile, and StoreTooOld if recovery takes so long that it may miss deletions.
    """
    clock, tables = ports.clock, changelog_partitions(app, lane)
    positions, ends, freshness, accepted = await start_positions(app, store, tables, ports, fenced=True)
    todo = {tp for tp in tables if positions[tp] < ends[tp]}
    await reader.assign({tp: positions[tp] for tp in todo}, copy_of(store).topics)
    records, moved = 0, clock.now()
    while todo:
        remaining(sum(ends[tp] - reader.position(tp) for tp in todo))
        try:
            batches = await reader.fetch(max_records=FETCH_RECORDS, timeout=0.2)
        except PositionLost as error:  # retention has moved a changelog's begin meanwhile: begin again
            cut = f"lane {lane}: a changelog was cut while it was read: {error}"
            raise ClusterUnavailable(cut) from error
        freshness.check(clock.now())
        records += restore(store, writes, tables, batches, reader.epoch, accepted)
        if batches:
            await ports.faults.reach("recovering")
        reached = {tp for tp in todo if reader.position(tp) >= ends[tp]}
        todo -= reached
        if batches or reached:
            moved = clock.now()
        elif clock.now() - moved > STALLED:
            raise TimeoutError(f"lane {lane}: no record for {STALLED:g} s, still to recover: {sorted(todo)}")
    remaining(0)
    at_end = {tp: max(ends[tp], store.position(tp)) for tp in tables}
    freshness.has_reached(at_end.__getitem__)
    store.apply((), at_end, current_at=freshness.current_at)
    return records


async def source_positions(
    app: Application, sources: Sequence[TP], store: Store, cluster: Cluster
) -> tuple[dict[TP, int], dict[TP, tuple[Range, ...]], set[TP]]:
    """The lane's position in each source partition, the ranges handled above it, and the partitions for which
    the group has lost its position.

    One transaction wrote the group's position and the one in the changelog. A group that was inactive for
    long loses its own. Then the changelog's position counts and has to be committed again.
    Raises PositionsDisagree if the two differ, and PositionLost if the log begins after them
    (docs/adr/0002).
    """
    committed = await cluster.committed(app.layout.app_id, sources)
    begins = await cluster.begin_offsets(sources)
    positions: dict[TP, int] = {}
    ahead: dict[TP, tuple[Range, ...]] = {}
    forgotten = set()
    for tp in sources:
        data = store.get(POSITIONS, position_key(tp, app.layout.partitions))
        try:
            stands = None if data is None else decode_position(data)
        except ValueError as error:
            raise PositionLost(
                f"{tp.topic} partition {tp.partition}: the position in the changelog cannot be read:"
                f' {data!r}. See docs/operating.md, "Positions that disagree".'
            ) from error
        recorded = None if stands is None else stands.offset
        if stands is not None and stands.ahead:
            ahead[tp] = stands.ahead
        if tp not in committed and recorded is not None:
            log.warning("group_position_expired", topic=tp.topic, partition=tp.partition, position=recorded)
            forgotten.add(tp)
        elif recorded != committed.get(tp):
            raise PositionsDisagree(
                f"{tp.topic} partition {tp.partition}: the group {app.layout.app_id} stands at"
                f" {committed.get(tp)}, the changelog at {recorded}. Someone has reset one of them:"
                ' see docs/operating.md, "Positions that disagree".'
            )
        if recorded is not None and recorded < begins[tp]:
            raise PositionLost(
                f"{tp.topic} partition {tp.partition}: handled up to {recorded}, but the log now begins at"
                f" {begins[tp]}: {begins[tp] - recorded} messages were deleted unread."
                ' See docs/operating.md, "Positions that disagree".'
            )
        positions[tp] = begins[tp] if recorded is None else recorded
    return positions, ahead, forgotten


def place_of(store: Store | None) -> dict[bytes, bytes] | None:
    """The positions in a failed lane's store; None if there is no store or it cannot be read."""
    if store is None:
        return None
    try:
        return dict(store.scan(POSITIONS))
    except StoreFailed:
        return None


def let_go(stores: Stores, store: Store | None, error: StoreFailed, lane: int) -> None:
    """Close a store that has failed, so that it can be opened again. A damaged store is removed and later
    rebuilt from the changelogs; any other stays on disk.
    """
    if store is not None:
        store.close()
    if isinstance(error, StoreBroken):
        log.warning("store_broken", lane=lane, error=str(error), action="removed, rebuilt from the changelog")
        try:
            stores.destroy(lane)
        except StoreFailed as failed:
            log.warning("store_not_wiped", lane=lane, error=str(failed), action="tried again")
