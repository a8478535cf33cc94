"""What the growth section puts into topics is what a lane would find there."""

import time
from pathlib import Path

import pytest

from benchmarks.growth.ground import GrowthGround
from benchmarks.growth.workload import COUNTS, Count
from streams.engine.staging.changes import Writes
from streams.engine.staging.inbox import Inbox, bucket_length
from streams.engine.staging.keys import store_key
from streams.model.codecs import decode_row
from streams.model.layout import INBOX, partition_of
from streams.model.row_keys import split_row_key
from streams.testing.store import MemoryStores

PARTITIONS = 4


@pytest.fixture
def ground(tmp_path: Path) -> GrowthGround:
    return GrowthGround("nowhere:1", tmp_path, "growth-test", partitions=PARTITIONS)


def test_preloaded_rows_have_different_keys_in_their_partitions(ground: GrowthGround) -> None:
    rows = list(ground._rows(1000))
    assert {split_row_key(key)[0] for _, key, _, _ in rows} == {b"k%d" % i for i in range(1000)}
    codec = ground.app.tables[COUNTS.name].codec
    for partition, key, value, _ in rows:
        assert partition == partition_of(split_row_key(key)[0], PARTITIONS)
        assert decode_row(codec, value) == Count(n=1)


def test_each_event_has_its_own_id_and_decodes(ground: GrowthGround) -> None:
    events = [*ground.events(50, keys=7), *ground.events(50, keys=7)]
    assert len({dict(headers)["ce_id"] for _, _, _, headers in events}) == 100
    codec = ground.app.routes[ground.topic].codec
    for partition, key, value, _ in events:
        assert codec.decode(value, None).key.encode() == key
        assert partition == partition_of(key, PARTITIONS)


def test_preloaded_ids_are_what_the_inbox_looks_for(ground: GrowthGround) -> None:
    retention = ground.app.lane_options.inbox_retention
    writes = Writes(bucket_length(retention))
    store = MemoryStores().open(0)
    for partition, key, value, _ in ground._ids(10):
        store.apply(writes.of(INBOX, partition, [(key, value)]), {})
    (handler,) = ground.app.routes[ground.topic].handlers
    inbox = Inbox(store, writes, retention)
    ids = {i: inbox.key(handler.name_bytes, b"growth", b"before-%d" % i) for i in (0, 9, 10)}
    keys = [store_key(i % PARTITIONS, name) for i, name in ids.items()]
    assert inbox.seen(keys, time.time()) == [True, True, False]
