"""How a lane opens: from where it goes on, when all that came before is final (docs/adr/0002)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from streams.lane.recovery import recover, source_partitions, source_positions
from streams.model.application import Application
from streams.ports import TP, Clock, Cluster, Faults, Reader, Store
from streams.positions.checks import check_topics, first_positions
from streams.staging.changes import Change, Writes
from streams.staging.position import Range


class Start(NamedTuple):
    """Where a lane goes on.

    Attributes:
        recovered: how many changelog records its store lacked.
        positions: from where to read its sources.
        ahead: what is handled above them.
        missing: those of them that are not recorded yet.
        changes: what else the first transaction records, by local key.
    """

    recovered: int
    positions: Mapping[TP, int]
    ahead: Mapping[TP, Collection[Range]]
    missing: Mapping[TP, int]
    changes: Mapping[bytes, Change]


async def find_start(
    app: Application,
    lane: int,
    topics: Collection[str],
    *,
    store: Store,
    cluster: Cluster,
    reader: Reader,
    writes: Writes,
    clock: Clock,
    faults: Faults,
    remaining: Callable[[int], None],
) -> Start:
    """Recover a lane's store, and learn its positions, after all old owners are fenced. `remaining` is called
    with how many offsets of changelogs are left to read.

    Raises PositionLost, PositionsDisagree, and what the cluster's answers raise.
    """
    recovered = await recover(
        app,
        lane,
        store=store,
        cluster=cluster,
        reader=reader,
        writes=writes,
        clock=clock,
        faults=faults,
        remaining=remaining,
    )
    sources = source_partitions(app, lane, topics)
    positions, ahead, forgotten = await source_positions(app, sources, store, cluster)
    changes = await check_topics(app, lane, topics, store, cluster)
    missing = first_positions(store, positions) | {tp: positions[tp] for tp in forgotten}
    return Start(recovered, positions, ahead, missing, changes)
