"""What an earlier version has written opens as it is.

The data was written by 11f4c36 on Kafka and RocksDB (`tests/lane/data`): two sagas that have ended, one with
its payload by reference, one whose step waits for a retry and has a timer, and a dead letter.
"""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

from lane_sagas import TRIPS, TripWanted, trips
from lane_scenes import post
from lane_worlds import FakeWorld

from streams.engine.staging.changes import COPY_OF, LOG_MARKS, POSITIONS, QUEUES, TIMERS
from streams.engine.waiting.dead_letters.row import LetterState, decode_letter
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import decode_row
from streams.model.layout import CLAIMS, DEAD_LETTERS
from streams.ports import TP, Store
from streams.testing.blobs import MemoryBlobs

WRITTEN = json.loads((Path(__file__).parent / "data" / "written_by_11f4c36.json").read_text())
#: Tables that say where the lane stands: they go on with each commit.
MOVING = (POSITIONS, COPY_OF, LOG_MARKS)


def tp_of(text: str) -> TP:
    topic, _, partition = text.rpartition("/")
    return TP(topic, int(partition))


def given(data: str | None) -> bytes | None:
    return None if data is None else b64decode(data)


def put_back(fake: FakeWorld) -> None:
    """Fill the broker with what was written, each record at its offset."""
    cluster = fake.cluster
    cluster.id, cluster.groups[fake.name] = (
        WRITTEN["cluster"],
        {tp_of(text): offset for text, offset in WRITTEN["group"].items()},
    )
    for topic, topic_id in WRITTEN["ids"].items():
        if topic in cluster.ids:
            cluster.ids[topic] = topic_id
    for text, written in WRITTEN["topics"].items():
        log = cluster.log(tp_of(text))
        for offset, timestamp, key, value, headers in written["records"]:
            log.end = offset
            log.append(None, timestamp, given(key), given(value), [(n, given(v)) for n, v in headers])
        log.end = written["end"]


def tables_of(store: Store) -> dict[str, dict[bytes, bytes]]:
    return {table: dict(store.scan(table)) for table in store.tables() if table not in MOVING}


async def test_data_of_an_earlier_version_opens_and_goes_on(fake: FakeWorld) -> None:
    fake.name = "upgraded"
    fake.clock.set(WRITTEN["now"])
    work: Any = trips(fake.clock)
    blobs = MemoryBlobs("event-payloads", now=fake.clock.now, sleep=fake.clock.sleep)
    checks = ClaimChecks(
        blobs, bucket="event-payloads", threshold=1000, max_in_flight_bytes=1 << 20, cache_bytes=0
    )
    await fake.start(work, partitions=2, claims=checks)
    put_back(fake)
    lane = fake.lane()
    await fake.until(lambda: lane.lane.state == "open")
    store = lane.lane.store
    assert store is not None
    before = {
        table: {b64decode(key): b64decode(value) for key, value in rows.items()}
        for table, rows in WRITTEN["store"].items()
        if table not in MOVING
    }
    today = tables_of(store)  # the directory, as its changelogs make it today
    assert [table for table in {*before, *today} if today.get(table) != before.get(table)] == []
    # The first is a duplicate.
    await fake.post(*(post(fake, TripWanted(k=key, to="oslo")) for key in "ad"))
    await fake.until(lambda: len(list(store.scan(TRIPS.name))) == 4 and not list(store.scan(TIMERS)))
    await fake.settled(TripWanted.TOPIC)
    assert work.till.taken == {"trip:a:money", "trip:d:money"}
    assert lane.lane.counters.duplicates == 1
    assert not list(store.scan(QUEUES))
    codec = fake.app.tables[TRIPS.name].codec
    found = [decode_row(codec, row) for _, row in store.scan(TRIPS.name)]
    assert {row.status for row in found} == {"completed"}
    (letter,) = (decode_letter(row) for _, row in store.scan(DEAD_LETTERS))
    assert (letter.state, letter.key, letter.value) == (LetterState.DEAD, b"bad", b"no avro, no json")
    assert len(list(store.scan(CLAIMS))) == 2
    assert not lane.lane.unreadable.texts()
    assert lane.lane.reopened == 0
