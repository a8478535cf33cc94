"""Faults of the object store: it answers nobody, nobody reaches it, or it is slow."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from chaos.faults.ground import MEETS_WITHIN, Ground, happened, lasting, told_of_failures
from chaos.rig.kinds import Planned
from chaos.rig.network import S3
from chaos.rig.records import Happened
from chaos.rig.waiting import until
from streams.errors import BlobsUnavailable
from streams.local import Stack


async def s3_down(planned: Planned, ground: Ground) -> Happened:
    """The server stands still: it takes connections, and answers when its clients have given up."""
    return await _until_handlers_fail(planned, ground, _frozen(ground.stack))


async def s3_cut(planned: Planned, ground: Ground) -> Happened:
    """No worker reaches it."""
    return await _until_handlers_fail(planned, ground, ground.network.s3_cut())


async def s3_slow(planned: Planned, ground: Ground) -> Happened:
    """What it is sent, and what it answers, takes longer."""
    began = time.time()
    with ground.network.s3_slow(planned.delay) as injected:
        async with lasting(planned.seconds):
            await until(lambda: injected.count, "a payload is on its way", within=MEETS_WITHIN)
    what = f"{injected.count} chunks delayed by {planned.delay * 500:.0f} ms"
    return happened(planned, S3, began, f"{what} in {time.time() - began:.1f} s")


async def _until_handlers_fail(
    planned: Planned, ground: Ground, fault: AbstractContextManager[object]
) -> Happened:
    """As long as planned, and until a handler has failed for it."""
    failures = ground.failures(BlobsUnavailable)
    began = time.time()
    with fault:
        async with lasting(planned.seconds):
            await until(failures, f"a handler fails for {planned.kind}", within=MEETS_WITHIN)
    return happened(planned, S3, began, told_of_failures(failures(), began))


@contextmanager
def _frozen(stack: Stack) -> Iterator[None]:
    stack.signal_process(S3, signal.SIGSTOP)
    try:
        yield
    finally:
        stack.signal_process(S3, signal.SIGCONT)
