"""Checks that a lane's topics are those that its positions, rows and local store belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import structlog

from streams.engine.life.positions.identity import copy_of, decode, encode, made_anew, refusal
from streams.engine.staging.changes import IDENTITIES, POSITIONS, Change
from streams.engine.staging.keys import (
    IDENTITY,
    POSITION,
    name_in,
    position_key,
    position_of,
    prefix_of,
    store_key,
)
from streams.engine.staging.position import decode_position
from streams.errors import ChangelogDamaged, ClusterUnavailable, PositionLost
from streams.model.application import Application
from streams.model.layout import LANE
from streams.ports import TP, Cluster, Identity, Store

log = structlog.get_logger(__name__)

FETCH_RECORDS = 5000
#: Seconds without a record after which reading a lane changelog fails.
STALLED = 30.0


async def require_same_changelogs(
    store: Store, cluster: Cluster, tables: Mapping[TP, str], identity: Identity
) -> None:
    """Raises TopicRecreated if a changelog was created again: its rows are gone from Kafka, and the store may
    have the only copy. Once an operator has accepted that, wipes the store instead.
    """
    noted = copy_of(store)
    if former := made_anew(noted, identity, [tp.topic for tp in tables]):
        lanes = [tp for tp, table in tables.items() if table == LANE]
        rows = await lane_rows(cluster, lanes)
        recorded = [decode(rows[tp].get(IDENTITY)).topics for tp in lanes]
        left = [topic for topic in former if any(of.get(topic) != identity.topics[topic] for of in recorded)]
        if left:
            raise refusal(noted, identity, left, "the local store")
        log.warning("store_of_former_topics", topics=former, action="wiped, rebuilt from the changelogs")
        store.wipe()
    elif unfollowed := {tp.topic for tp in tables if store.position(tp)} - noted.topics.keys():
        # A version without these tables has run meanwhile, so the age of their rows is unknown.
        log.warning("store_without_tables", topics=sorted(unfollowed), action="wiped, rebuilt")
        store.wipe()


async def require_rows(cluster: Cluster, tables: Mapping[TP, str], cut: Mapping[TP, int]) -> None:
    """Raises ChangelogDamaged if the rows below the offsets in `cut` were deleted from changelogs, and the
    store lacks them, unless an operator has given them up. Compaction does not move the begin of a log.
    """
    lanes = [tp for tp, table in tables.items() if table == LANE]
    rows = await lane_rows(cluster, lanes) if cut else {}
    given_up = {tp.partition: decode(row.get(IDENTITY)).begins for tp, row in rows.items()}
    left = {tp: begin for tp, begin in cut.items() if given_up[tp.partition].get(tp.topic, 0) < begin}
    if left:
        names = ", ".join(f"{tp.topic}[{tp.partition}] below {begin}" for tp, begin in sorted(left.items()))
        raise ChangelogDamaged(
            f"rows were deleted from the changelog, and the local store has not read them: {names}. A worker"
            " whose store has them opens the lane. To give them up: `steadfaust positions accept --topic"
            f' {min(left).topic}`; see docs/operating.md, "A changelog is damaged".'
        )


def check_topics(app: Application, lane: int, store: Store, identity: Identity) -> dict[bytes, Change]:
    """Compare topic ids with those recorded with the lane's positions and rows. Returns changes of the lane's
    table, by local key, that record the topics which are new to it.

    Raises TopicRecreated.
    """
    changes = {}
    for partition in app.layout.partitions_of(lane):
        data = store.get(IDENTITIES, prefix_of(partition))
        recorded = decode(data)
        if former := made_anew(recorded, identity, identity.topics):
            handled = {tp: at for topic in former for tp, at in _recorded(app, partition, topic, store)}
            raise refusal(recorded, identity, former, f"what was recorded of partition {partition}", handled)
        if (now := encode(recorded.also(identity))) != data:
            changes[store_key(partition, IDENTITY)] = Change(LANE, IDENTITY, now)
    return changes


def _recorded(app: Application, partition: int, topic: str, store: Store) -> Iterator[tuple[TP, int]]:
    """The positions in a topic that a partition number has recorded."""
    if topic not in app.sources:
        return
    start = store_key(partition, topic.encode())
    for key, value in store.scan(POSITIONS, start=start, stop=prefix_of(partition + 1)):
        tp = position_of(name_in(key), partition)
        if tp.topic == topic:
            yield tp, decode_position(value).offset


def first_positions(app: Application, store: Store, positions: Mapping[TP, int]) -> dict[TP, int]:
    """The positions of partitions that have none recorded yet. The lane records them, so that it notices if
    messages are deleted unread from then on.
    """
    partitions = app.layout.partitions
    return {
        tp: offset
        for tp, offset in positions.items()
        if store.get(POSITIONS, position_key(tp, partitions)) is None
    }


async def lane_rows(cluster: Cluster, tps: Iterable[TP]) -> dict[TP, dict[bytes, bytes]]:
    """Read lane changelogs to their current ends. Returns their positions and identities by changelog key.

    Raises TimeoutError if no record arrives for STALLED seconds, and ClusterUnavailable if a changelog is cut
    or created again while it is read. Then read it again.
    """
    begins, ends = await cluster.begin_offsets(tps), await cluster.end_offsets(tps)
    rows: dict[TP, dict[bytes, bytes]] = {tp: {} for tp in tps}
    todo = {tp: begin for tp, begin in begins.items() if begin < ends[tp]}
    reader = await cluster.reader()
    try:
        await reader.assign(todo)
        while any(reader.position(tp) < ends[tp] for tp in todo):
            try:
                batches = await reader.fetch(max_records=FETCH_RECORDS, timeout=STALLED)
            except PositionLost as error:
                raise ClusterUnavailable(f"a lane changelog was cut while it was read: {error}") from error
            if not batches:
                raise TimeoutError(f"no record for {STALLED:g} s of {sorted(todo)}")
            for batch in batches:
                for record in batch.records:
                    if record.key and record.key[:1] in (POSITION, IDENTITY):
                        _set(rows[batch.tp], record.key, record.value)
    finally:
        await reader.close()
    return rows


def _set(rows: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value
