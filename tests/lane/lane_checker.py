"""An independent check of what lanes have left behind: from the topics and the stores, not from the lanes."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from lane_worlds import Post, World, ids

from streams.engine.life.recovery import changelog_partitions
from streams.engine.staging import changes
from streams.engine.staging.inbox import bucket_length
from streams.engine.staging.keys import position_of
from streams.model.layout import dead_letter_topic
from streams.model.row_keys import split_row_key
from streams.ports import TP, Stores


async def latest(world: World, table: str) -> dict[tuple[int, bytes], bytes]:
    """A table as its changelog has it: partition and changelog key -> value."""
    rows: dict[tuple[int, bytes], bytes] = {}
    for record in await world.records(world.app.layout.changelog(table)):
        assert record.key is not None
        rows[record.partition, record.key] = record.value  # type: ignore[assignment]
    return {key: value for key, value in rows.items() if value is not None}


async def counts(world: World, table: str = "counts") -> dict[str, int]:
    """Key -> the count in its row, in the JSON codec."""
    found: dict[str, int] = {}
    for (partition, row), value in (await latest(world, table)).items():
        key, _ = split_row_key(row)
        assert world.app.layout.partition_of(key) == partition, f"the row of {key!r} lies in {partition}"
        found[key.decode()] = json.loads(value[8:])["n"]
    return found


async def check(
    world: World, workload: Any, expected: Iterable[Post], *, table: str = "counts", settled: bool = True
) -> None:
    """Each expected event has been counted and passed on exactly once, all are settled, all copies agree.

    `expected` has one post for each id, whatever was sent twice.
    """
    wanted = {dict(post.headers)["ce_id"].decode(): (post.key or b"").decode() for post in expected}
    passed_on = await world.records(workload.output)
    assert Counter(ids(passed_on)) == Counter(dict.fromkeys(wanted, 1))
    own_ids = [dict(record.headers)["ce_id"] for record in passed_on]
    assert len(set(own_ids)) == len(own_ids)
    per_key = Counter(wanted.values())
    assert await counts(world, table) == per_key
    # Of each key the outputs count from one, in order: none was handled over rows of the future or the past.
    for key in per_key:
        numbers = [json.loads(r.value or b"")["n"] for r in passed_on if r.key == key.encode()]
        assert numbers == list(range(1, per_key[key] + 1)), key
    await check_positions(world, [workload.source] if settled else [])


async def check_positions(world: World, settled: Iterable[str] = ()) -> None:
    """The group's positions are those in the changelog; of `settled` topics nothing is left to handle."""
    recorded = {
        position_of(key[1:], partition): int(value.split()[0])
        for (partition, key), value in (await latest(world, "lane")).items()
        if key[:1] == b"p"
    }
    await world.until_at(recorded)
    tps = {TP(topic, p) for topic in world.app.sources for p in range(world.app.layout.partitions)}
    assert await world.cluster.committed(world.name, tps | recorded.keys()) == recorded
    for topic in settled:
        for record in await world.records(topic):
            assert recorded[TP(topic, record.partition)] > record.offset


async def check_store(
    world: World, lane: int = 0, stores: Stores | None = None, *, may_be_empty: bool = False
) -> None:
    """A closed lane's store holds what its changelogs say, no more and no less. Stale entries of the indexes
    of what is due are allowed: they are recognised when they come up.
    """
    writes = changes.Writes(bucket_length(world.app.lane_options.inbox_retention))
    rebuilt: dict[str, dict[bytes, bytes]] = {}
    for tp, table in changelog_partitions(world.app, lane).items():
        pairs = [
            (r.key or b"", r.value) for r in await world.records(tp.topic) if r.partition == tp.partition
        ]
        for name, key, value in writes.of(table, tp.partition, pairs):
            rows = rebuilt.setdefault(name, {})
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
    store = (stores or world.machine).open(lane)
    try:
        copy = {table: dict(store.scan(table)) for table in store.tables()}
    finally:
        store.close()
    for table in (rebuilt.keys() | copy.keys()) - {
        changes.TIMERS_BY_DUE,
        changes.QUEUES_BY_DUE,
        changes.DEAD_LETTERS_BY_AGE,
        changes.COPY_OF,
        changes.LOG_MARKS,
    }:
        assert copy.get(table, {}) == rebuilt.get(table, {}), table
    assert may_be_empty or copy.get(changes.POSITIONS), "the store has never been written"


async def dead_letters(world: World, topic: str) -> list[Any]:
    return list(await world.records(dead_letter_topic(topic)))
