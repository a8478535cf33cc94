"""What pages ask of Kafka has one bound of seconds, however many ask."""

import asyncio
from collections.abc import AsyncIterator
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust.worker import Worker as FaustWorker

from streams.brokers import READ
from streams.control.base.scans import Question
from streams.control.base.windows import Window
from streams.control.overview.overview import why_not_ready
from streams.errors import ClusterUnavailable
from streams.host import process
from streams.kafka.cluster import KafkaCluster
from streams.ports import TP
from streams.settings import Settings
from streams.worker.web import _View
from tests.waiting import BOUND


@pytest.fixture
async def view() -> AsyncIterator[_View]:
    """Of a worker whose only broker takes connections and never answers."""
    open_ones: list[asyncio.StreamWriter] = []

    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    bootstrap = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cluster = KafkaCluster(bootstrap)
    app: Any = SimpleNamespace(cluster=cluster, steadfaust=Settings(bootstrap=bootstrap))
    yield _View(app)
    await cluster.close()
    server.close()
    for each in open_ones:
        each.close()


async def test_reads_of_a_silent_broker_end_after_one_patience(view: _View) -> None:
    tp = TP("a", 0)
    asked = [
        view.topic_facts(["a"]),
        view.logs([tp]),
        view.browse(Window((tp,), {}, backwards=True, limit=1)),
        view.scan(Question((tp,), 0, (b"k",))),
        *(view.logs([tp]) for _ in range(36)),
    ]
    # With the 15 s of lanes each, two at a time, they would be here for more than the bound.
    async with asyncio.timeout(BOUND):
        found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(each) for each in found} == {ClusterUnavailable}
    assert any(f"within {READ:g} s" in str(each) for each in found)


def test_a_worker_is_stopping_from_its_signal_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faust goes on serving its pages while it stops what runs."""
    monkeypatch.setattr(process, "_end_hung_process", lambda: None)
    monkeypatch.setattr(FaustWorker, "_schedule_shutdown", lambda *_: None)
    worker = object.__new__(process.WorkerProcess)
    worker.ending = False
    view = _View(cast("Any", SimpleNamespace(process=worker)))
    assert not view.stopping
    worker._schedule_shutdown(SIGTERM)
    (why,) = why_not_ready(view)
    assert why.startswith("the worker is stopping")
