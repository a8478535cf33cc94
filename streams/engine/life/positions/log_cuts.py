"""Compares source topics and changelogs with what a lane has read, written and copied to its store."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from streams.engine.staging.changes import LOG_MARKS
from streams.engine.staging.log_marks import (
    UNKNOWN,
    Mark,
    decode_mark,
    encode_mark,
    key_of,
    lost_from,
    mark_of,
)
from streams.errors import LogCut, Lost
from streams.model.layout import Layout
from streams.ports import NO_EPOCH, TP, Cluster, Commit, Note, Store, Write

log = structlog.get_logger(__name__)

#: Offsets by which a changelog may be short of the end in the group, because a transaction's marker may be
#: written after the group's positions. Only readers that have not fenced the lane can see that.
MARKER = 1


async def require_sources(cluster: Cluster, group: str, handled: Mapping[TP, int]) -> dict[TP, int]:
    """Check that sources still have all records that were handled. `handled` has the end of these for each
    partition: the position, or the end of the ranges above it. Returns the leader epochs of the positions,
    where known. Raises LogCut.
    """
    ends = await cluster.end_offsets(handled)
    commits = await cluster.commits(group, handled)
    marks = {tp: source_mark(commits.get(tp), at) for tp, at in handled.items()}
    if cut := await lost(cluster, handled, marks, ends):
        raise LogCut(cut.values())
    return {tp: mark.epoch for tp, mark in marks.items() if mark.epoch != NO_EPOCH}


def source_mark(commit: Commit | None, handled: int) -> Mark:
    """The mark of a source log, for the end of its handled records. The commit's epoch is that of the last
    record read, so the log also had the records handled above the position.
    """
    return mark_of(commit)._replace(at=handled)


async def lost(
    cluster: Cluster, positions: Mapping[TP, int], marks: Mapping[TP, Mark], ends: Mapping[TP, int]
) -> dict[TP, Lost]:
    """The logs that have lost records before their positions, and what each has lost."""
    known = {tp: marks[tp].epoch for tp in positions if marks[tp].epoch != NO_EPOCH}
    epoch_ends = await cluster.epoch_ends(known) if known else {}
    found = {}
    for tp, position in positions.items():
        at = lost_from(position, marks[tp], ends[tp], epoch_ends.get(tp))
        if at is not None:
            found[tp] = Lost(*tp, max(position, marks[tp].at), at)
    return found


async def require_changelogs(
    store: Store,
    cluster: Cluster,
    commits: Mapping[TP, Commit],
    ends: Mapping[TP, int],
    *,
    fenced: bool,
) -> tuple[dict[TP, int], bool]:
    """Check that changelogs have all that lanes have written, up to the ends that the group has committed,
    and that a store is a copy of them. Request `commits` before `ends`. `fenced` says that no transaction of
    the lane is under way.

    Returns how often a cut of each changelog was accepted, and whether the store has records that its
    changelogs lack, so that it has to be wiped. Raises LogCut.
    """
    marks = {tp: mark_of(commits.get(tp)) for tp in ends}
    late = 0 if fenced else MARKER
    written = {tp: commits[tp].offset - late for tp in ends if tp in commits}
    cut = await lost(cluster, written, marks, ends)
    if cut:
        raise LogCut(cut.values())
    copied = {tp: store.position(tp) for tp in ends if store.position(tp)}
    notes = {tp: noted(store, tp) for tp in copied}
    accepted = {tp: (marks[tp] if tp in commits else notes.get(tp, UNKNOWN)).accepted for tp in ends}
    stale = {tp for tp in copied if notes[tp].accepted != accepted[tp]}
    if stale:
        log.warning(
            "store_of_a_cut_log", changelogs=sorted(stale), action="wiped, rebuilt from the changelog"
        )
    # All that the group has committed is there. The store is ahead of it, such as by records that no
    # transaction has committed.
    ahead = await lost(cluster, {tp: copied[tp] for tp in copied.keys() - stale}, notes, ends)
    unknown = [each for tp, each in ahead.items() if tp not in written or each.at < written[tp]]
    if unknown:
        raise LogCut(unknown)
    if ahead:
        log.error(
            "store_ahead_of_changelog", partitions=sorted(ahead), action="wiped, rebuilt from the changelog"
        )
    return accepted, bool(stale or ahead)


def noted(store: Store, tp: TP) -> Mark:
    """The mark that a store has of a changelog; UNKNOWN if it has none."""
    data = store.get(LOG_MARKS, key_of(tp))
    return UNKNOWN if data is None else decode_mark(data.decode(errors="replace"))


def log_mark(tp: TP, mark: Mark) -> Write:
    """The write that stores a changelog's mark."""
    return LOG_MARKS, key_of(tp), encode_mark(mark).encode()


async def remember(layout: Layout, lane: int, cluster: Cluster, error: LogCut) -> None:
    """Commit a note of the lost records with the group's positions, so that no lane goes on once its log has
    grown again. Fences the lane. Raises Fenced, TransactionFailed or ClusterUnavailable.
    """
    found = {TP(each.topic, each.partition): each for each in error.lost}
    if not cut_notes(found, await cluster.commits(layout.app_id, found))[0]:
        return
    producer = cluster.transactions(layout.transactional_id(lane))
    try:
        await producer.start()
        commits = await cluster.commits(layout.app_id, found)
        if not error.hides:  # an operator may have accepted the loss meanwhile
            still = {tp: commit.offset for tp, commit in commits.items()}
            marks = {tp: mark_of(commit) for tp, commit in commits.items()}
            found = await lost(cluster, still, marks, await cluster.end_offsets(still))
        offsets, notes = cut_notes(found, commits)
        if offsets:
            await producer.begin()
            await producer.send_offsets(offsets, layout.app_id, notes)
            await producer.commit()
    finally:
        await producer.discard()


def cut_notes(found: Mapping[TP, Lost], commits: Mapping[TP, Commit]) -> tuple[dict[TP, int], dict[TP, Note]]:
    """The unchanged positions, and notes of what was lost before them. Partitions that already have a note of
    this loss are left out.
    """
    offsets, notes = {}, {}
    for tp, each in found.items():
        if (commit := commits.get(tp)) is None:
            continue
        mark = decode_mark(commit.text)
        if not mark.is_cut or each.at < mark.cut:
            offsets[tp] = commit.offset
            notes[tp] = Note(commit.epoch, encode_mark(mark._replace(cut=each.at)))
    return offsets, notes


async def accepted_ends(
    group: str, cluster: Cluster, tps: Collection[TP]
) -> tuple[dict[TP, int], dict[TP, Note]]:
    """The current ends of changelogs and their notes, to commit when an operator accepts the changelogs as
    they are. For a cut changelog the note counts one more accepted cut, so that lanes rebuild stores that
    were copies of it.
    """
    commits = await cluster.commits(group, tps)
    ends = await cluster.end_offsets(tps)
    epochs = await cluster.leader_epochs(tps)
    marks = {tp: mark_of(commits.get(tp)) for tp in tps}
    cut = await lost(cluster, {tp: commits[tp].offset for tp in tps if tp in commits}, marks, ends)
    notes = {
        tp: Note(text=encode_mark(Mark(epochs.get(tp, NO_EPOCH), end, marks[tp].accepted + (tp in cut))))
        for tp, end in ends.items()
    }
    return ends, notes
