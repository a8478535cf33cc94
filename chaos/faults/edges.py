"""Faults between processes: a worker's network, the gateway, the object store; and handlers that fail."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from chaos.faults.ground import (
    MEETS_WITHIN,
    OPEN_WITHIN,
    Ground,
    happened,
    lasting,
    named,
    told_of_failures,
)
from chaos.rig.fleet import worker_name
from chaos.rig.kinds import Planned
from chaos.rig.network import S3, Injected
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed, until
from chaos.rig.worker_faults import HandlerFault, failing_file
from streams.errors import BlobsUnavailable
from streams.local import Stack


async def network_cut(planned: Planned, ground: Ground) -> Happened:
    """One worker's connections to all brokers are closed, for longer than its session."""
    fault = ground.network.cut(ground.worker(planned).name)
    return await _cut_off(planned, ground, fault, "connections cut or refused")


async def network_blackhole(planned: Planned, ground: Ground) -> Happened:
    """Nothing passes between one worker and the brokers for as long, and no connection is closed."""
    fault = ground.network.blackhole(ground.worker(planned).name)
    return await _cut_off(planned, ground, fault, "chunks held back")


async def network_delay(planned: Planned, ground: Ground) -> Happened:
    """All between one worker and the brokers takes longer."""
    assert planned.slot is not None
    name = worker_name(planned.slot)
    fault = ground.network.delay(name, planned.delay)
    return await _for_a_while(planned, fault, name, f"chunks delayed by {planned.delay * 1000:.0f} ms")


async def gateway_down(planned: Planned, ground: Ground) -> Happened:
    """No worker reaches the payment gateway."""
    fault = ground.network.gateway_down()
    return await _for_a_while(planned, fault, "gateway", "connections cut or refused")


async def gateway_down_in_low_traffic(planned: Planned, ground: Ground) -> Happened:
    """For longer than all attempts of a message take, while too few come for a failure rate to show."""
    with ground.load.trickling():
        fault = ground.network.gateway_down()
        return await _for_a_while(planned, fault, "gateway", "connections cut or refused")


async def gateway_slow(planned: Planned, ground: Ground) -> Happened:
    """The gateway's answers take longer."""
    fault = ground.network.gateway_slow(planned.delay)
    return await _for_a_while(planned, fault, "gateway", f"chunks delayed by {planned.delay * 1000:.0f} ms")


async def gateway_loses_answers(planned: Planned, ground: Ground) -> Happened:
    """The gateway charges, and its answer is lost."""
    return await _for_a_while(planned, ground.network.gateway_loses_answers(), "gateway", "answers lost")


async def handlers_fail(planned: Planned, ground: Ground) -> Happened:
    """Handlers of all workers fail now and then, before their work or after it: as long as planned, and until
    one has.
    """
    failures = ground.failures(HandlerFault)
    file = failing_file(ground.var)
    began = time.time()
    file.write_text(str(planned.rate))
    try:
        async with lasting(planned.seconds):
            await until(failures, "a handler fails", within=MEETS_WITHIN)
    finally:
        file.unlink()
    return happened(planned, "handlers", began, told_of_failures(failures(), began))


async def _cut_off(
    planned: Planned, ground: Ground, fault: AbstractContextManager[Injected], what: str
) -> Happened:
    """Until others own the worker's lanes; then wait until it is a member again."""
    worker = ground.worker(planned)
    lanes = worker.lanes
    mark = worker.log.mark()
    began = time.time()
    with fault as injected:
        async with lasting(planned.seconds):
            heirs = await ground.until_taken_over(lanes, worker)
    seconds = time.time() - began
    if not injected.count:
        raise ChaosFailed(f"{planned.kind} of {worker.name} met nothing: no {what}")
    await until(
        lambda: worker.log.events("lanes_assigned", mark),
        f"{worker.name} is a member again: see {worker.log.path}",
        within=OPEN_WITHIN,
    )
    await ground.until_open(worker)
    confirmed = (
        f"{injected.count} {what} in {seconds:.1f} s; {named(lanes)} taken over by {', '.join(heirs)};"
        " then a member again"
    )
    return happened(planned, worker.name, began, confirmed)


async def _for_a_while(
    planned: Planned, fault: AbstractContextManager[Injected], target: str, what: str
) -> Happened:
    """As planned, and until it has had an effect: beside a dying broker, lanes pause."""
    began = time.time()
    with fault as injected:
        async with lasting(planned.seconds):
            await until(
                lambda: injected.count, f"{planned.kind} of {target} meets any: {what}", within=MEETS_WITHIN
            )
    return happened(planned, target, began, f"{injected.count} {what} in {time.time() - began:.1f} s")


async def s3_down(planned: Planned, ground: Ground) -> Happened:
    """The server is frozen: it takes connections, and answers when its clients have given up."""
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
