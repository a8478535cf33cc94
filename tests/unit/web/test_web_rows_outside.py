"""Rows read from outside: from the owner, from a standby with its age, after a message is committed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from web_workers import MANY_KEYS, PARCELS, Browser, FakeStandby, FakeWorker, Parcel, ParcelSeen, owner_of

from streams.engine.staging.changes import POSITIONS
from streams.engine.staging.keys import position_key
from streams.engine.staging.position import encode_position
from streams.errors import RowsUnavailable, Undecodable
from streams.host.client import Place
from streams.model.policy.assignment import Assignment
from streams.ports import TP
from streams.settings import Settings
from streams.worker import tables
from streams.worker.tables import Aged, TableReader

GONE = "http://127.0.0.1:1"


@dataclass
class Workers:
    """Two workers with two lanes each, and the map of owners that Kafka has."""

    first: FakeWorker
    second: FakeWorker
    known: Assignment

    def reader(self, timeout: float = 60.0) -> TableReader[Parcel]:
        settings = Settings(app_id="post", partitions=8, lanes=4, bootstrap="nowhere:1")
        reader = TableReader(PARCELS, settings, timeout=timeout)
        reader._owners._ask = self.ask  # type: ignore[method-assign]
        return reader

    async def ask(self) -> Assignment:
        return self.known

    def owner(self, key: str) -> FakeWorker:
        return owner_of(key, self.first, self.second)

    def commit(self, key: str, offset: int) -> None:
        worker, tp = self.owner(key), TP(ParcelSeen.TOPIC, self.first.partition(key))
        store = worker.lanes[worker.lane(key)].store
        assert store is not None
        store.apply([(POSITIONS, position_key(tp, 8), encode_position(offset))], {})


@pytest.fixture
async def workers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    monkeypatch.setattr(tables, "PAUSE", 0.01)
    first = FakeWorker.with_lanes(0, 1)
    second = FakeWorker.with_lanes(2, 3, app=first.application)
    async with AsyncExitStack() as opened:
        for worker in (first, second):
            worker.url = (await opened.enter_async_context(Browser.of(worker))).url
        owners = {0: first.url, 1: first.url, 2: second.url, 3: second.url}
        known = Assignment(owners=owners, members=(first.url, second.url), partitions=8, lanes=4)
        first.assignment = second.assignment = known
        yield Workers(first, second, known)


async def test_a_row_is_read_from_the_owner_of_its_key(workers: Workers) -> None:
    for key in MANY_KEYS[:20]:
        workers.owner(key).put(key, note=f"of {key}")
        workers.owner(key).put(key, "sub", note="sub")
    async with workers.reader() as parcels:
        for key in MANY_KEYS[:20]:
            assert await parcels.get(key) == Parcel(note=f"of {key}")
            assert await parcels.get(key, "sub") == Parcel(note="sub")
        assert await parcels.get("nowhere") is None


async def test_all_rows_are_read_over_all_workers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE", "7")
    for key in MANY_KEYS:
        workers.owner(key).put(key, note=key)
    found = [(key, row.note) async for key, _, row in workers.reader().range()]
    assert sorted(found) == sorted((key, key) for key in MANY_KEYS)
    begins = {key async for key, _, _ in workers.reader().range("k1")}
    assert begins == {key for key in MANY_KEYS if key.startswith("k1")}
    workers.owner("k1").put("k1", "more", note="more")
    assert [sub async for _, sub, _ in workers.reader().range(key="k1")] == ["", "more"]


async def test_a_read_waits_until_the_message_is_committed(workers: Workers) -> None:
    place = Place(ParcelSeen.TOPIC, workers.first.partition("k1"), 7)
    workers.owner("k1").put("k1", note="before")
    maps_read = []

    async def ask() -> Assignment:
        maps_read.append(1)
        if len(maps_read) == 3:
            workers.owner("k1").put("k1", note="after")
            workers.commit("k1", 8)
        return workers.known

    reader = workers.reader()
    reader._owners._ask = ask  # type: ignore[method-assign]
    workers.commit("k1", 7)
    assert await reader.get("k1", after=place) == Parcel(note="after")
    assert len(maps_read) == 3


@pytest.mark.parametrize("place", [Place("t", 99, 0), Place("", 0, 0)])
async def test_a_place_of_another_partition_is_refused(workers: Workers, place: Place) -> None:
    with pytest.raises(RowsUnavailable, match="give topic:partition:offset"):
        await workers.reader().get("k1", after=place)


async def test_a_standby_answers_with_its_age_when_owners_are_gone(workers: Workers) -> None:
    key = workers.second.key_in(2)
    workers.second.put(key, note="copied")
    assert await workers.reader().get_stale(key) == Aged(Parcel(note="copied"), 0.0)
    workers.first.standbys[2] = FakeStandby(2, store=workers.second.lanes[2].store)
    gone = Assignment(
        owners={**workers.known.owners, 2: GONE}, followers={2: (workers.first.url,)}, partitions=8, lanes=4
    )
    workers.known = workers.first.assignment = gone
    assert await workers.reader().get_stale(key) == Aged(Parcel(note="copied"), 3.0)
    with pytest.raises(RowsUnavailable, match=r"not read within 0\.2 s: .*does not answer"):
        await workers.reader(timeout=0.2).get(key)


async def test_a_lane_that_moves_is_found_at_its_new_owner(workers: Workers) -> None:
    key = workers.second.key_in(2)
    workers.second.put(key, note="moved")
    maps: list[Any] = [Assignment(owners=dict.fromkeys(range(4), GONE)), Assignment(), workers.known]
    reader = workers.reader()

    async def ask() -> Assignment:
        found: Assignment = maps.pop(0)
        return found

    reader._owners._ask = ask  # type: ignore[method-assign]
    assert await reader.get(key) == Parcel(note="moved")
    assert maps == []


async def test_a_row_that_cannot_be_read_is_an_error(workers: Workers) -> None:
    workers.owner("k1").put("k1", raw=b"not a row at all")
    with pytest.raises(Undecodable, match="parcels, key 'k1'"):
        await workers.reader().get("k1")
