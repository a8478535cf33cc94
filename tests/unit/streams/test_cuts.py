"""What a worker knows of cuts, with a cluster that gives it trouble; lanes: tests/lane/test_lane_cuts.py."""

from typing import Any

import pytest

from streams.engine.life.positions import cuts as module
from streams.engine.life.positions.cuts import Cuts
from streams.errors import Fenced
from streams.model.layout import Layout
from streams.ports import TP, Batch
from streams.testing.clients import FakeReader
from streams.testing.cluster import FakeCluster

TWO = Layout("app", 4, 2)
ANNOUNCED = TP(TWO.announcements, 0)


class SlowReader(FakeReader):
    """Brings a record at a time, as a reader does of a long log."""

    async def fetch(self, *, max_records: int, timeout: float) -> list[Batch]:
        return await super().fetch(max_records=min(max_records, 1), timeout=timeout)


class Troubled(FakeCluster):
    """Its owners are fenced by others, again and again, as often as it is told."""

    def __init__(self, *cuts: int, fenced: int = 0) -> None:
        super().__init__({ANNOUNCED.topic: 1})
        for lanes in cuts:
            self.produce(ANNOUNCED, b"cut:%d" % lanes, b"%d" % lanes)
        self.fenced = fenced
        self.started: list[str] = []

    async def reader(self) -> FakeReader:
        return SlowReader(self)

    def transactions(self, transactional_id: str) -> Any:
        producer = super().transactions(transactional_id)
        start = producer.start

        async def started() -> None:
            self.started.append(transactional_id)
            if self.fenced:
                self.fenced -= 1
                raise Fenced("another lane has the same in mind")
            await start()

        producer.start = started  # type: ignore[method-assign]
        return producer


async def enters(cluster: Troubled, cuts: Cuts) -> None:
    await cuts.enter(0, FakeCluster.transactions(cluster, "own"), await cluster.reader())


async def test_a_long_log_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAITS", 3)
    cluster = Troubled(*[4] * 20, 2)
    await enters(cluster, Cuts(TWO, cluster))
    assert sorted(cluster.started) == ["app-lane-0-of-4", "app-lane-2-of-4"]


async def test_an_owner_that_is_not_fenced_keeps_the_lane_closed() -> None:
    cluster = Troubled(4, 2, fenced=100)
    cuts = Cuts(TWO, cluster)
    with pytest.raises(Fenced):
        await enters(cluster, cuts)
    cluster.fenced, cluster.started = 0, []
    await enters(cluster, cuts)
    assert sorted(cluster.started) == ["app-lane-0-of-4", "app-lane-2-of-4"]
