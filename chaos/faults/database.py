"""Faults of the database edge: relays of the outbox, orders APIs, and PostgreSQL itself.

Each is seen to heal: what was in the outbox is published, an order is accepted, and the end of one is
written, within a bound that includes what a fault beside it takes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from chaos.faults.ground import MEETS_WITHIN, OPEN_WITHIN, Ground, happened, lasting
from chaos.rig.edge import RELAYS, WAYS, api_name, relay_name
from chaos.rig.kinds import Planned
from chaos.rig.processes import ChildProcess
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed, until, until_answered
from demo.worker_log import Event
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
    recovered = await edge_works(ground)
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
    recovered = await edge_works(ground)
    await ground.edge.until_shared(within=RECOVERS_WITHIN)
    confirmed = f"pid {before.pid} ended by SIGKILL, away for {away:.1f} s; pid {after.pid} in its place"
    return happened(planned, "PostgreSQL", began, f"{confirmed}, recovered from its log, {recovered}")


async def silent_postgres(planned: Planned, ground: Ground) -> Happened:
    """Nothing passes between the edge and PostgreSQL, and no connection is closed: relays cut theirs."""
    edge = ground.edge
    relays = [edge.named(relay_name(number)) for number in range(RELAYS)]
    marks = [relay.log.mark() for relay in relays]
    began = time.time()
    with ground.network.postgres_silent() as silence:
        async with lasting(planned.seconds):
            for relay, mark in zip(relays, marks, strict=True):
                await until(
                    lambda relay=relay, mark=mark: relay.log.events("relay_without_database", mark),  # type: ignore[misc]
                    f"{relay.name} cuts its silent connection: see {relay.log.path}",
                    within=MEETS_WITHIN,
                )
    silent = time.time() - began
    if not silence.count:
        raise ChaosFailed("nothing was on its way to PostgreSQL while the network was silent")
    recovered = await edge_works(ground)
    await edge.until_shared(within=RECOVERS_WITHIN)
    confirmed = f"{silence.count} chunks held back in {silent:.1f} s, both relays cut their connections"
    return happened(planned, "PostgreSQL", began, f"{confirmed}, {recovered}")


async def lock_outbox(planned: Planned, ground: Ground) -> Happened:
    """An operator's transaction locks rows that wait: the relay says who has them, and marks them later."""
    edge = ground.edge
    relays = [edge.named(relay_name(number)) for number in range(RELAYS)]
    marks = [relay.log.mark() for relay in relays]

    def waits(pid: int) -> list[Event]:
        return [
            event
            for relay, mark in zip(relays, marks, strict=True)
            for event in relay.log.events("relay_waits", mark)
            if f"held by pid {pid} " in event.get("error", "")
        ]

    began = time.time()
    async with edge.locked_rows(within=MEETS_WITHIN) as (pid, rows), lasting(planned.seconds):
        await until(lambda: waits(pid), f"a relay waits for pid {pid}: see its log", within=MEETS_WITHIN)
    held = time.time() - began
    recovered = await _relays_recover(ground)
    confirmed = f"pid {pid} locked {rows} rows that waited, for {held:.1f} s; a relay logged it, {recovered}"
    return happened(planned, "the outbox", began, confirmed)


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


async def edge_works(ground: Ground) -> str:
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


def _died(process: ChildProcess) -> str:
    if process.exit_code != -signal.SIGKILL:
        raise ChaosFailed(
            f"{process.name} ended with {process.exit_code}, not killed: see {process.log.path}"
        )
    return f"pid {process.pid} ended by SIGKILL"
