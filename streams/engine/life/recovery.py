"""A lane's store: bring it to the end of its changelogs, find where to read on, mend it after an error.

Used when a lane opens and by standbys, which do it all the time. Recovery goes to the high watermark with a
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

#: How long recovery may see no record at all before it gives up and the lane opens again, in seconds.
STALLED = 30.0
FETCH_RECORDS = 5000


def open_store(stores: Stores, lane: int, *, followed: bool) -> Store:
    """Open a lane's store; a damaged one is removed, and recovery will fill a new one. `followed` says
    whether changes of its rows will be marked. Raises StoreUnavailable: then nothing is removed.
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
    """Write changelog records to the store with their positions and leader epochs; returns how many records.
    That does not make it current: how far behind the ends it is, is not known here. `accepted` are cuts of
    the changelogs. Raises ChangelogDamaged: what cannot be read may be a row.
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
    """How a store is to be brought to the ends of its changelogs.

    Attributes:
        positions: where each is to be read from.
        ends: where they ended.
        freshness: of the store, which expects to reach these ends.
        accepted: how often an operator has accepted that a changelog was cut.
    """

    positions: dict[TP, int]
    ends: dict[TP, int]
    freshness: Freshness
    accepted: dict[TP, int]


async def start_positions(
    app: Application, store: Store, tables: Mapping[TP, str], ports: Ports, *, fenced: bool = False
) -> Copying:
    """How to bring a store up to date. Wipes one that cannot be trusted; `copy_of` has the ids of the
    changelogs then. `fenced` says that no transaction of the lane is under way.

    Raises TopicGone, TopicRecreated, LogCut where a changelog has lost records, and ChangelogDamaged where
    rows are deleted that the store lacks.
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
    # The inbox forgets by retention. Before any wipe: this store may be the last that has the rows.
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
        # An empty copy has all that there is before the first offset.
        store.apply([note_of(origin)], {}, current_at=asked_at)
    elif copy_of(store) != origin:
        store.apply([note_of(origin)], {})
    freshness = Freshness(store.current_at() or asked_at, delete_retention)
    freshness.expect(asked_at, ends)
    positions = {tp: max(store.position(tp), begins[tp]) for tp in tables}
    return Copying(positions, ends, freshness, accepted)


async def touch(store: Store, cluster: Cluster, tables: Mapping[TP, str], clock: Clock) -> None:
    """Say that an idle owner's store is current, if it is, so that it is not rebuilt as too old.

    Raises ClusterUnavailable: without Kafka's word nothing is current. Each partition may end in a marker.
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
    """Bring the store to the end of the lane's changelogs; returns the number of records read.
    `remaining` is called with how many offsets are left.

    Raises TimeoutError when nothing comes for STALLED seconds, and StoreTooOld when it has taken so long that
    deletions may be missed.
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
    """Where the lane goes on reading each source partition, what is handled above that, and those that the
    group has forgotten.

    The group's committed position and the one in the changelog were written by one transaction; a group
    that was gone for long has lost its own: then the changelog's counts, and is to be committed again.
    Raises PositionsDisagree when they do, and PositionLost when the log no longer reaches back to them
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
    """The positions at which a lane has failed; None where its store cannot tell them."""
    if store is None:
        return None
    try:
        return dict(store.scan(POSITIONS))
    except StoreFailed:
        return None


def let_go(stores: Stores, store: Store | None, error: StoreFailed, lane: int) -> None:
    """Close a store that has failed, so that it can be opened again. One that is damaged is removed, and
    rebuilt from the changelogs; any other keeps its copy.
    """
    if store is not None:
        store.close()
    if isinstance(error, StoreBroken):
        log.warning("store_broken", lane=lane, error=str(error), action="removed, rebuilt from the changelog")
        try:
            stores.destroy(lane)
        except StoreFailed as failed:
            log.warning("store_not_wiped", lane=lane, error=str(failed), action="tried again")
