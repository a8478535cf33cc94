"""Faults of a real object store: its users fail or wait for as long as they last, and not after."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.faults.ground import Ground
from chaos.faults.perform import perform
from chaos.rig.kinds import FaultKind, Planned
from chaos.rig.network import S3, ClientNetwork
from chaos.rig.waiting import ChaosFailed
from demo.worker_log import WorkerLog
from streams.errors import BlobsUnavailable
from streams.local import Stack
from streams.s3 import S3Blobs, S3Options
from streams.settings import LOCAL_BUCKET, LOCAL_KEYS
from tests.waiting import BOUND, eventually_async

pytestmark = pytest.mark.promise(
    "chaos", "outages of the object store happen, are noticed where it is needed, and end"
)

NAME = "worker-0"


@dataclass
class Worker:
    """Writes an object again and again, and logs as a lane does when it cannot."""

    blobs: S3Blobs
    path: Path
    log: WorkerLog
    written: int = 0
    pid: int = os.getpid()

    async def run(self) -> None:
        while True:
            try:
                await self.blobs.put("events/any", b"data", "text/plain")
            except BlobsUnavailable as error:
                failed = {"event": "handler_failed", "handler": "svc.h", "decision": "TryAgain"}
                with self.path.open("a") as file:
                    file.write(json.dumps({**failed, "error": f"{type(error).__name__}: {error}"}) + "\n")
            else:
                self.written += 1


@asynccontextmanager
async def at_work(s3: Stack, var: Path, patience: float = 0.3) -> AsyncIterator[tuple[Worker, Ground]]:
    """A worker that reaches the object store through the proxy, and that its fleet knows of."""
    path = var / "log"
    path.touch()
    with ClientNetwork(s3, [NAME]) as network:
        options = S3Options(LOCAL_BUCKET, network.s3(NAME), *LOCAL_KEYS)
        blobs = S3Blobs(replace(options, read_timeout=patience, connect_timeout=patience))
        worker = Worker(blobs, path, WorkerLog(path))
        fleet = cast("Any", SimpleNamespace(alive=[worker]))
        nothing = cast("Any", None)
        working = asyncio.create_task(worker.run())
        try:
            await writes(worker)
            yield worker, Ground(var, nothing, fleet, nothing, network, s3, nothing, nothing)
        finally:
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
            await blobs.close()


async def writes(worker: Worker) -> None:
    before = worker.written
    await eventually_async(lambda: worker.written > before, "an object is written")


@pytest.mark.parametrize("kind", [FaultKind.S3_DOWN, FaultKind.S3_CUT])
async def test_an_outage_is_confirmed_by_failing_handlers_and_heals(
    s3: Stack, tmp_path: Path, kind: FaultKind
) -> None:
    async with at_work(s3, tmp_path) as (worker, ground):
        happened = await perform(Planned(at=0.0, kind=kind, seconds=0.5), ground)
        assert "failures of 1 handlers" in happened.confirmed
        assert (happened.kind, happened.target) == (kind, S3)
        assert happened.ended is not None
        assert len(worker.log.events("handler_failed")) > 0
        await writes(worker)


async def test_a_slow_object_store_lets_nobody_fail(s3: Stack, tmp_path: Path) -> None:
    async with at_work(s3, tmp_path, patience=BOUND) as (worker, ground):
        happened = await perform(Planned(at=0.0, kind=FaultKind.S3_SLOW, seconds=0.5, delay=0.1), ground)
        assert "chunks delayed by 50 ms" in happened.confirmed
        await writes(worker)
        assert worker.log.events("handler_failed") == []


@pytest.mark.parametrize("kind", [FaultKind.S3_DOWN, FaultKind.S3_CUT])
async def test_an_outage_that_nobody_notices_did_not_happen(
    s3: Stack, tmp_path: Path, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.edges.MEETS_WITHIN", 0.2)
    async with at_work(s3, tmp_path) as (worker, ground):
        worker.log = WorkerLog(tmp_path / "another")
        worker.log.path.touch()
        with pytest.raises(ChaosFailed, match=f"a handler fails for {kind}"):
            await perform(Planned(at=0.0, kind=kind, seconds=0.1), ground)
        await writes(worker)
