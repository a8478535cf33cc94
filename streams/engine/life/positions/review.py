"""Where the lanes of an application stand in its topics, and what an operator may make of it by hand.

Accepting is a lane's own transaction: it fences the lane's owner, reads what is recorded after that, and
commits the new position to the group and the lane changelog together. So it is as exact as any commit, also
when workers run; they open again from what it has left. One that has stopped is to be started again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import msgspec

from streams.engine.life.positions.checks import lane_rows
from streams.engine.life.positions.cuts import Cuts
from streams.engine.life.positions.identity import NOTHING, Recorded, decode, encode
from streams.engine.life.positions.log_cuts import MARKER, accepted_ends, lost, source_mark
from streams.engine.staging.keys import IDENTITY, POSITION, position_name, position_of
from streams.engine.staging.log_marks import mark_of
from streams.engine.staging.position import Range, below, decode_position, encode_position, end_of_handled
from streams.errors import LayoutMismatch, Lost, PositionLost, TopicMismatch
from streams.model.layout import INBOX, LANE, Layout
from streams.ports import TP, Cluster, Commit, Identity, Note, Outgoing


class At(StrEnum):
    """Where to go on reading a topic."""

    AUTO = "auto"  # as recorded, where the log has that and is the same; where it was cut; else at its begin
    BEGIN = "begin"
    END = "end"
    RECORDED = "recorded"
    GROUP = "group"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a topic, as a lane would find it. `problem` is empty where the lane would open.

    `recorded` is the position in the lane changelog, `group` that of the group; of a changelog there is none.
    `was` is the recorded id of the topic, `topic_id` the one that the cluster tells. `cut` is the offset from
    which on the log has lost what lanes had read or written, up to `had`.
    """

    topic: str
    partition: int
    was: str
    topic_id: str
    recorded: int | None
    group: int | None
    begin: int
    end: int
    problem: str
    cut: int | None = None
    had: int | None = None


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a partition: its position before and now, None of a changelog."""

    topic: str
    partition: int
    before: int | None
    position: int | None
    topic_id: str


async def require_partitions(layout: Layout, cluster: Cluster) -> None:
    """Check that the application has as many partitions as `layout`: with another number a command would skip
    some. Raises LayoutMismatch.
    """
    topic = layout.changelog(LANE)
    found = (await cluster.identity([topic])).partitions.get(topic, layout.partitions)
    if found != layout.partitions:
        raise LayoutMismatch(
            f"{layout.app_id} has {found} partitions, and STEADFAUST_PARTITIONS is {layout.partitions}:"
            " set it as the workers have it"
        )


async def standings(layout: Layout, cluster: Cluster, topics: Collection[str] = ()) -> list[Standing]:
    """All that lanes have recorded, or of these topics, sorted."""
    rows = await lane_rows(cluster, _lane_changelog(layout, range(layout.partitions)))
    kept = {tp.partition: decode(found.get(IDENTITY)) for tp, found in rows.items()}
    stands = {
        position_of(key[1:], tp.partition): decode_position(value)
        for tp, found in rows.items()
        for key, value in found.items()
        if key[:1] == POSITION
    }
    known = {*stands, *(TP(topic, number) for number, each in kept.items() for topic in each.topics)}
    identity = await cluster.identity({*(tp.topic for tp in known), *topics})
    known |= {TP(topic, number) for topic in topics for number in range(identity.partitions.get(topic, 0))}
    there = sorted(
        tp
        for tp in known
        if tp.partition < identity.partitions.get(tp.topic, 0) and (not topics or tp.topic in topics)
    )
    commits = await cluster.commits(layout.app_id, there)  # before the ends, which only grow
    begins, ends = await cluster.begin_offsets(there), await cluster.end_offsets(there)
    positions = {tp: each.offset for tp, each in stands.items()}
    handled = {tp: end_of_handled(*each) for tp, each in stands.items()}
    cut = await _cut(layout, cluster, handled, commits, ends)
    return [
        _standing(
            layout,
            tp,
            kept[layout.home_of(tp.partition)],
            identity,
            found=(positions.get(tp), commits[tp].offset if tp in commits else None),
            log=(begins[tp], ends[tp]),
            lost=cut.get(tp),
        )
        for tp in there
    ]


async def _cut(
    layout: Layout,
    cluster: Cluster,
    handled: Mapping[TP, int],
    commits: Mapping[TP, Commit],
    ends: Mapping[TP, int],
) -> dict[TP, Lost]:
    """The logs that have lost what lanes had read or written; lanes may be at work meanwhile."""
    stood = {tp: at for tp in ends if (at := _stood(layout, tp, handled, commits)) is not None}
    marks = {
        tp: mark_of(commits.get(tp)) if is_changelog(layout, tp.topic) else source_mark(commits.get(tp), at)
        for tp, at in stood.items()
    }
    found = await lost(cluster, stood, marks, ends)
    return {
        tp: each._replace(position=commits[tp].offset) if is_changelog(layout, tp.topic) else each
        for tp, each in found.items()
    }


def _stood(layout: Layout, tp: TP, handled: Mapping[TP, int], commits: Mapping[TP, Commit]) -> int | None:
    if is_changelog(layout, tp.topic):
        return commits[tp].offset - MARKER if tp in commits else None
    return handled.get(tp)


def _standing(
    layout: Layout,
    tp: TP,
    recorded: Recorded,
    identity: Identity,
    *,
    found: tuple[int | None, int | None],
    log: tuple[int, int],
    lost: Lost | None,
) -> Standing:
    (position, group), (begin, end) = found, log
    was, topic_id = recorded.topics.get(tp.topic, ""), identity.topics[tp.topic]
    problem = ""
    if was and was != topic_id:
        problem = "created again" if recorded.cluster == identity.cluster else "another cluster"
        lost = None
    elif lost is not None:
        problem = "records were lost"
    elif is_changelog(layout, tp.topic):
        cut = tp.topic != layout.changelog(INBOX) and recorded.begins.get(tp.topic, 0) < begin
        problem = "rows were deleted" if cut else ""
    elif group is not None and group != position:
        problem = "the group was reset"
    elif position is not None and position < begin:
        problem = "deleted unread"
    return Standing(
        topic=tp.topic,
        partition=tp.partition,
        was=was,
        topic_id=topic_id,
        recorded=position,
        group=None if is_changelog(layout, tp.topic) else group,
        begin=begin,
        end=end,
        problem=problem,
        cut=None if lost is None else lost.at,
        had=None if lost is None else lost.position,
    )


def choose(standing: Standing, at: At | int) -> int:
    """The position to go on from. Raises PositionLost for one that there is not, or not in the log."""
    same = not standing.was or standing.was == standing.topic_id
    recorded, begin, end = standing.recorded, standing.begin, standing.end
    if at is At.AUTO and same and standing.cut is not None:
        # What is there from the cut on was not handled, nor was all of what is below it where messages above
        # the position were.
        return max(begin, standing.cut if recorded is None else min(recorded, standing.cut))
    if at is At.AUTO:
        kept = same and recorded is not None and begin <= recorded <= end
        at = At.RECORDED if kept else At.BEGIN
    if isinstance(at, At):
        found = {At.BEGIN: begin, At.END: end, At.RECORDED: recorded, At.GROUP: standing.group}[at]
    else:
        found = at
    where = f"{standing.topic} partition {standing.partition}"
    if found is None:
        raise PositionLost(f"{where} has no position {at}: choose begin, end or an offset")
    if not begin <= found <= end:
        raise PositionLost(
            f"{where} holds {begin} to {end}, not {found}: choose begin, end or an offset of it"
        )
    return found


async def accept(
    layout: Layout,
    cluster: Cluster,
    topic: str,
    partitions: Iterable[int],
    at: At | int = At.AUTO,
    *,
    dry_run: bool = False,
) -> list[Accepted]:
    """Go on with a topic as it is now: record its id, and of a source where to go on. `dry_run` only says it,
    and fences no owner.

    Raises TopicMismatch when there is no such topic, PositionLost when the position cannot be, LayoutMismatch
    when workers run with another number of lanes.
    """
    numbers = list(partitions)
    there = (await cluster.identity([topic])).partitions.get(topic)
    # A source may have fewer partitions than the application. Its id is recorded in each number all the same.
    if there is not None and numbers and min(numbers) >= there:
        raise TopicMismatch(f"{topic} has no partition {min(numbers)}")
    by_lane: dict[int, list[int]] = {}
    for number in numbers:
        by_lane.setdefault(layout.lane_of(layout.home_of(number)), []).append(number)
    accepted = []
    cuts = Cuts(layout, cluster)  # never records one: another than the newest is refused
    for lane, some in sorted(by_lane.items()):
        if dry_run:
            accepted += (await _decide(layout, cluster, topic, some, at))[0]
            continue
        accepted += await _accept_in_lane(lane, layout, cluster, cuts, topic, some, at)
    return accepted


async def _accept_in_lane(
    lane: int,
    layout: Layout,
    cluster: Cluster,
    cuts: Cuts,
    topic: str,
    numbers: Collection[int],
    at: At | int,
) -> list[Accepted]:
    """In one transaction of the lane's own id, which fences its owner."""
    producer = cluster.transactions(layout.transactional_id(lane))
    reader = await cluster.reader()
    try:
        await producer.start()
        await cuts.enter(lane, producer, reader, may_record=False)
        decided, kept, ahead, stale = await _decide(layout, cluster, topic, numbers, at)
        positions = {
            TP(topic, each.partition): each.position for each in decided if each.position is not None
        }
        await producer.begin()
        await producer.send(_records(layout, decided, kept, ahead, stale))
        notes = {tp: Note(epoch) for tp, epoch in (await cluster.leader_epochs(positions)).items()}
        if is_changelog(layout, topic):
            positions, notes = await accepted_ends(
                layout.app_id, cluster, [TP(topic, each.partition) for each in decided]
            )
        if positions:
            await producer.send_offsets(positions, layout.app_id, notes)
        await producer.commit()
    finally:
        await producer.discard()
        await reader.close()
    return decided


async def _decide(
    layout: Layout, cluster: Cluster, topic: str, numbers: Collection[int], at: At | int
) -> tuple[list[Accepted], Mapping[int, Recorded], Mapping[int, Collection[Range]], list[TP]]:
    """Positions to accept for each partition, the topics that are recorded there, what is handled above the
    position, where that stays as it is, and recorded partitions that are no more. Partitions that were
    added go with the number to which they belong, where nothing is recorded of them from where the group
    is, if `at` says so.
    """
    homes = sorted({layout.home_of(number) for number in numbers})
    rows = await lane_rows(cluster, _lane_changelog(layout, homes))
    kept = {tp.partition: decode(found.get(IDENTITY)) for tp, found in rows.items()}
    identity = await cluster.identity([topic])
    if topic not in identity.topics:
        raise TopicMismatch(f"the cluster has no topic {topic}: create it, or start a worker, which does")
    found = {each.partition: each for each in await standings(layout, cluster, [topic])}
    is_source = not is_changelog(layout, topic)
    positions = {
        place.partition: value
        for tp, row in rows.items()
        for key, value in row.items()
        if key[:1] == POSITION and (place := position_of(key[1:], tp.partition)).topic == topic
    }
    there = range(layout.partitions, identity.partitions[topic]) if is_source else ()
    added = sorted(
        {*positions, *(number for number in there if layout.home_of(number) in homes)}
        - {*numbers, *range(layout.partitions)}
    )
    if not is_source and (missing := sorted(set(numbers) - found.keys())):
        raise TopicMismatch(f"{topic} has no partition {missing[0]}")
    decided = [
        Accepted(
            topic=topic,
            partition=number,
            before=found[number].recorded,
            position=choose(found[number], at if number in numbers else _of_added(found[number], at))
            if is_source
            else None,
            topic_id=identity.topics[topic],
        )
        for number in [*numbers, *added]
        if number in found
    ]
    ahead = {
        each.partition: below(decode_position(value).ahead, found[each.partition].cut)
        for each in decided
        if (value := positions.get(each.partition)) is not None
        and each.position == each.before
        and kept[layout.home_of(each.partition)].topics.get(topic) == each.topic_id
    }
    stale = [TP(topic, number) for number in added if number not in found]
    recorded = {number: kept.get(number, NOTHING).also(identity) for number in homes}
    if is_changelog(layout, topic):
        recorded = {n: each.without_rows(topic, found[n].begin) for n, each in recorded.items()}
    return decided, recorded, ahead, stale


def _of_added(standing: Standing, at: At | int) -> At:
    """Where to go on in a partition that was not named."""
    by_group = at is At.GROUP and standing.recorded is None and standing.group is not None
    return At.GROUP if by_group else At.AUTO


def _records(
    layout: Layout,
    decided: Iterable[Accepted],
    kept: Mapping[int, Recorded],
    ahead: Mapping[int, Collection[Range]],
    stale: Iterable[TP],
) -> dict[TP, list[Outgoing]]:
    records: dict[TP, list[Outgoing]] = {}

    def put(source: TP, position: bytes | None) -> None:
        (tp,) = _lane_changelog(layout, [layout.home_of(source.partition)])
        key = POSITION + position_name(source, layout.partitions)
        records[tp].append(Outgoing(key, position, []))

    for number, recorded in kept.items():
        (tp,) = _lane_changelog(layout, [number])
        records[tp] = [Outgoing(IDENTITY, encode(recorded), [])]
    for each in decided:
        if each.position is not None:
            put(TP(each.topic, each.partition), encode_position(each.position, ahead.get(each.partition, ())))
    for source in stale:
        put(source, None)
    return records


def is_changelog(layout: Layout, topic: str) -> bool:
    """Whether a topic is a changelog of the application, which has no position."""
    return topic.startswith(f"{layout.app_id}-") and topic.endswith("-changelog")


def _lane_changelog(layout: Layout, numbers: Iterable[int]) -> list[TP]:
    return [TP(layout.changelog(LANE), number) for number in numbers]
