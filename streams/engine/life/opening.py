"""How a lane opens: from where it goes on, when all that came before is final (docs/adr/0002)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import structlog

from streams.engine.life.positions.checks import check_topics, first_positions
from streams.engine.life.positions.identity import decode
from streams.engine.life.positions.log_cuts import log_mark, noted, require_sources
from streams.engine.life.recovery import changelog_partitions, recover, source_positions
from streams.engine.staging.changes import IDENTITIES, Change, Writes
from streams.engine.staging.keys import prefix_of
from streams.engine.staging.log_marks import Mark, mark_of
from streams.engine.staging.position import Range, end_of_handled
from streams.engine.way.changelog_ends import ChangelogEnds
from streams.engine.way.memory import LaneMemory
from streams.engine.way.topics import partitions_read
from streams.errors import PositionLost, TopicGone
from streams.model.application import Application
from streams.model.sources import EARLIEST, Start
from streams.ports import NO_EPOCH, TP, Cluster, Ports, Reader, Store

log = structlog.get_logger(__name__)


class Opened(NamedTuple):
    """Where a lane goes on.

    Attributes:
        recovered: how many changelog records its store lacked.
        positions: from where to read its sources.
        ahead: what is handled above them.
        missing: those of them that are not recorded yet.
        changes: what else the first transaction records, by local key.
        topic_ids: by which the sources are to be read.
        epochs: the leader epochs of the positions, as far as known.
        logs: how far its changelogs are written.
    """

    recovered: int
    positions: Mapping[TP, int]
    ahead: Mapping[TP, Collection[Range]]
    missing: Mapping[TP, int]
    changes: Mapping[bytes, Change]
    topic_ids: Mapping[str, str]
    epochs: Mapping[TP, int]
    logs: ChangelogEnds


async def find_start(
    app: Application, memory: LaneMemory, ports: Ports, store: Store, reader: Reader, writes: Writes
) -> Opened:
    """Recover a lane's store, and learn its positions, after all old owners are fenced. The lane's measures
    tell how many offsets of changelogs are left to read, and how topics stand.

    Raises TopicGone, PositionLost, PositionsDisagree, LogCut, and what the cluster's answers raise.
    """
    lane, topics, cluster, standing = memory.number, memory.topics, ports.cluster, memory.measures.topics
    recovered = await recover(app, lane, ports, store, reader, writes, memory.measures.recovering)
    logs = await changelog_ends(app, lane, store, cluster)
    # Before the positions: they are then read in the topics that were checked, whatever comes in between.
    identity = await cluster.identity([*topics, *app.changelogs])
    standing.see(app, topics, identity, ports.clock.now())
    if gone := sorted({*topics, *app.changelogs} - identity.topics.keys()):
        raise TopicGone(gone)
    changes = check_topics(app, lane, store, identity)
    sources = list(partitions_read(app, lane, topics, identity))
    positions, ahead, forgotten = await source_positions(app, sources, store, cluster)
    positions |= await starts(app, store, cluster, positions)
    handled = {tp: end_of_handled(at, ahead.get(tp, ())) for tp, at in positions.items()}
    epochs = await require_sources(cluster, app.layout.app_id, handled)
    first = first_positions(app, store, positions)
    standing.began({tp: at for tp, at in first.items() if not app.wiring.is_source(tp.topic)})
    for topic, number in added(app, positions).items():
        log.warning(
            "partitions_added",
            lane=lane,
            topic=topic,
            partitions=identity.partitions[topic],
            expected=app.layout.partitions,
            reads=number,
            action="their records are forwarded to the partitions of their keys",
        )
    missing = first | {tp: positions[tp] for tp in forgotten}
    return Opened(recovered, positions, ahead, missing, changes, identity.topics, epochs, logs)


async def changelog_ends(app: Application, lane: int, store: Store, cluster: Cluster) -> ChangelogEnds:
    """The ends to which a store was just brought. Raises as the cluster's answers do."""
    ends = {tp: store.position(tp) for tp in changelog_partitions(app, lane)}
    commits = await cluster.commits(app.layout.app_id, ends)
    epochs = await cluster.leader_epochs(ends)  # after the ends were known
    accepted = {tp: (mark_of(commits[tp]) if tp in commits else noted(store, tp)).accepted for tp in ends}
    marks = {tp: Mark(epochs.get(tp, NO_EPOCH), at, accepted[tp]) for tp, at in ends.items()}
    store.apply([log_mark(tp, mark) for tp, mark in marks.items()], {})
    return ChangelogEnds(ends, marks)


async def starts(
    app: Application, store: Store, cluster: Cluster, positions: Mapping[TP, int]
) -> dict[TP, int]:
    """Where sources begin that this lane has never seen, if that is not the beginning. Partitions that were
    added to a source since then are read from theirs.
    """
    found: dict[TP, int] = {}
    for topic, source in app.wiring.sources().items():
        mine = [tp for tp in positions if tp.topic == topic and _is_unseen(app, store, tp)]
        if mine and source.start is not EARLIEST:
            found |= await _begins(cluster, topic, mine, source.start, positions)
    return found


def _is_unseen(app: Application, store: Store, tp: TP) -> bool:
    data = store.get(IDENTITIES, prefix_of(app.layout.home_of(tp.partition)))
    return tp.topic not in decode(data).topics


async def _begins(
    cluster: Cluster, topic: str, tps: Collection[TP], start: Start, begins: Mapping[TP, int]
) -> dict[TP, int]:
    ends = await cluster.end_offsets(tps)
    if not start.group:
        return ends if start.since_ms is None else ends | await cluster.offsets_since(tps, start.since_ms)
    numbers = (await cluster.identity([topic])).partitions.get(topic, 0)
    stands = await cluster.committed(start.group, [TP(topic, number) for number in range(numbers)])
    if not stands:
        raise PositionLost(
            f"the source {topic} begins where the group {start.group} stands, and that has no offset in it:"
            " correct the name, or give another start"
        )
    # Offsets of a group may be of a former topic with the same name.
    return {tp: min(max(stands.get(tp, 0), begins[tp]), ends[tp]) for tp in tps}


def added(app: Application, positions: Iterable[TP]) -> Counter[str]:
    """By topic how many of the partitions are such that somebody has added. Sources have any number."""
    return Counter(
        tp.topic
        for tp in positions
        if tp.partition >= app.layout.partitions and not app.wiring.is_source(tp.topic)
    )
