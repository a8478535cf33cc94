"""Faults of the database edge: relays of the outbox, orders APIs, and PostgreSQL itself.

Each is seen to heal: what was in the outbox is published, an order is accepted, and what became of one is
written, within a bound that includes what a fault beside it takes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from chaos.edge import WAYS, api_name, relay_name
from chaos.errors import ChaosFailed
from chaos.faults.ground import OPEN_WITHIN, Ground, happened, lasting
from chaos.kinds import Planned
from chaos.processes import Process
from chaos.records import Happened
from chaos.waiting import until, until_answered
from streams.postgres.relay.options import SHARDS

#: Seconds from when what was hit is there again until the edge does all of its work.
RECOVERS_WITHIN = 60.0
_POSTGRES = "postgres"
#: What PostgreSQL writes when it finds that it did not end in order.
_RECOVERED = "database system was not properly shut down"


async def kill_relay(planned: Planned, ground: Ground) -> Happened:
    """SIGKILL; the other relay takes its shards, until it is started again."""
    edge = ground.edge
    await edge.until_shared(within=RECOVERS_WITHIN)
    relay = edge.named(relay_name(planned.which))
    began = time.time()
    relay.kill(planned.kind)
    confirmed = _died(relay)
    await _until_one_has_all(ground)
    again = await edge.start_relay(planned.which)
    recovered = await _relays_recover(ground)
    confirmed += f"; the other had all shards; pid {again.pid} in its place, {recovered}"
    return happened(planned, relay.name, began, confirmed)


async def freeze_relay(planned: Planned, ground: Ground) -> Happened:
    """SIGSTOP for longer than its lease: the other relay takes its shards, and it wakes as a zombie."""
    edge = ground.edge
    await edge.until_shared(within=RECOVERS_WITHIN)
    relay = edge.named(relay_name(planned.which))
    mark = relay.log.mark()
    began = time.time()
    relay.freeze()
    try:
        async with lasting(planned.seconds):
            await _until_one_has_all(ground)
    finally:
        relay.thaw()
    seconds = time.time() - began
    await until(
        lambda: relay.log.events("relay_joined", mark),
        f"{relay.name} joins again: see {relay.log.path}",
        within=OPEN_WITHIN,
    )
    recovered = await _relays_recover(ground)
    confirmed = f"frozen for {seconds:.1f} s; the other had all shards; awake, it joined again, {recovered}"
    return happened(planned, relay.name, began, confirmed)


async def kill_api(planned: Planned, ground: Ground) -> Happened:
    """SIGKILL of an orders API and its projection, requests under way or not; it is started again at once."""
    way = WAYS[planned.which]
    api = ground.edge.named(api_name(way))
    began = time.time()
    api.kill(planned.kind)
    confirmed = _died(api)
    again = await ground.edge.start_api(way)
    recovered = await _edge_works(ground)
    return happened(planned, api.name, began, f"{confirmed}; pid {again.pid} in its place, {recovered}")


async def kill_postgres(planned: Planned, ground: Ground) -> Happened:
    """SIGKILL of the server; it is away for a while, and recovers from its log."""
    stack = ground.stack
    before = stack.state.processes[_POSTGRES]
    log = Path(before.log)
    size = len(_read(log))
    began = time.time()
    try:
        async with lasting(planned.seconds):
            await asyncio.to_thread(stack.stop_process, _POSTGRES, signal.SIGKILL)
    finally:
        await asyncio.to_thread(stack.start_process, _POSTGRES)
    away, after = time.time() - began, stack.state.processes[_POSTGRES]
    if after.pid == before.pid or _RECOVERED not in _read(log)[size:]:
        raise ChaosFailed(f"PostgreSQL (pid {before.pid}) was not seen to end and to recover: see {log}")
    recovered = await _edge_works(ground)
    await ground.edge.until_shared(within=RECOVERS_WITHIN)
    confirmed = f"pid {before.pid} ended by SIGKILL, away for {away:.1f} s; pid {after.pid} in its place"
    return happened(planned, "PostgreSQL", began, f"{confirmed}, recovered from its log, {recovered}")


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


async def _until_one_has_all(ground: Ground) -> None:
    async def alone() -> bool:
        return list((await ground.edge.owners()).values()) == [SHARDS]

    await until_answered(alone, "one relay has all shards", within=OPEN_WITHIN)


async def _relays_recover(ground: Ground) -> str:
    """Wait until both relays have shards and what waited is published; returns what to say of it."""
    began = time.time()
    await ground.edge.until_shared(within=RECOVERS_WITHIN)
    last = await ground.edge.last()
    await ground.edge.until_published(last, within=RECOVERS_WITHIN)
    return f"all published {time.time() - began:.1f} s later"


async def _edge_works(ground: Ground) -> str:
    """Wait until each API has accepted an order, it is published, and the projection writes."""
    began, accepted = time.time(), dict(ground.load.accepted())
    await until(
        lambda: all(ground.load.accepted()[way] > accepted.get(way, 0) for way in WAYS),
        "each orders API accepts an order",
        within=RECOVERS_WITHIN,
    )
    last = await ground.edge.last()
    await ground.edge.until_published(last, within=RECOVERS_WITHIN)
    await ground.edge.until_settled_since(began, within=RECOVERS_WITHIN)
    return f"all of its work done {time.time() - began:.1f} s later"


def _died(process: Process) -> str:
    if process.exit_code != -signal.SIGKILL:
        raise ChaosFailed(
            f"{process.name} ended with {process.exit_code}, not killed: see {process.log.path}"
        )
    return f"pid {process.pid} ended by SIGKILL"
