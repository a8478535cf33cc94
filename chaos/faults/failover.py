"""A failover of PostgreSQL: a standby is promoted, while the former primary lives on or is killed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from chaos.faults.database import RECOVERS_WITHIN, edge_works
from chaos.faults.ground import Ground, happened
from chaos.rig.edge import Edge
from chaos.rig.kinds import Planned
from chaos.rig.network import POSTGRES, ClientNetwork
from chaos.rig.postgres_server import PostgresServer, ask, copy_for_standby, execute
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed, until, until_answered
from streams.local import Stack, postgres

_IN_STEP_WITHIN = 60.0
_SYNC = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
#: By the file that is written: a checkpoint comes later.
_TIMELINE = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)::int AS timeline"
#: What the former primary commits after the promotion is never answered: no standby confirms it.
_SYNCHRONOUS = ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")


async def failover_postgres(planned: Planned, ground: Ground) -> Happened:
    """A synchronous standby is promoted. New connections lead to it, open ones stay at the former primary,
    which can be written or (`which` is 1) is killed. Then the new one takes the place of the former.
    """
    began = time.time()
    async with a_standby(ground.stack) as standby:
        await _until_synchronous(ground.stack)
        promoted = time.time()
        await standby.promote()
        former = _leave(ground.network, standby)
        ground.edge.postgres = standby.url
        if planned.which:
            await asyncio.to_thread(ground.stack.stop_process, POSTGRES, signal.SIGKILL)
        await until_left(ground.network, standby, within=RECOVERS_WITHIN)
        left = time.time() - promoted
        recovered = await edge_works(ground)
        timeline = await standby.ask(_TIMELINE)
        await replace_former(ground.stack, standby)
        lead_back(ground.stack, ground.network, ground.edge)
    again = await edge_works(ground)
    await ground.edge.until_shared(within=RECOVERS_WITHIN)
    if not former:
        raise ChaosFailed("the database edge had no connection at the former primary")
    how = "killed" if planned.which else "writable"
    confirmed = (
        f"promoted to timeline {timeline}, the former primary {how}; {former} connections left it within"
        f" {left:.1f} s, {recovered}; in its place, {again}"
    )
    return happened(planned, "PostgreSQL", began, confirmed)


@asynccontextmanager
async def a_standby(stack: Stack) -> AsyncIterator[PostgresServer]:
    """A standby of the stack's server that follows it; it has ended when this is left."""
    home = stack.var.postgres
    data = home / "standby"
    url = urlsplit(stack.url(POSTGRES))
    await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
    await asyncio.to_thread(copy_for_standby, url.port or 0, data)
    # Not by the name of the stack's cluster: what is left of that is killed when it is.
    standby = PostgresServer(data, url.path.lstrip("/"))
    try:
        await asyncio.to_thread(standby.start)
        yield standby
    finally:
        await asyncio.to_thread(standby.close)


async def until_left(network: ClientNetwork, standby: PostgresServer, *, within: float) -> None:
    """Wait until no connection of the database edge leads to another server. Raises ChaosFailed."""
    await until(
        lambda: not _leave(network, standby),
        "no connection of the database edge is left at the former primary",
        within=within,
    )


async def replace_former(stack: Stack, standby: PostgresServer) -> None:
    """Put the promoted server in the place of the former primary, as the stack's process, at its port."""
    home = stack.var.postgres
    await asyncio.to_thread(standby.end)
    if stack.state.processes[POSTGRES].up:
        await asyncio.to_thread(stack.stop_process, POSTGRES, signal.SIGKILL)
    await asyncio.to_thread(postgres.end_left, home)
    former = home / "data"
    await asyncio.to_thread(shutil.rmtree, former)
    standby.data.rename(former)
    await asyncio.to_thread(stack.start_process, POSTGRES)


def lead_back(stack: Stack, network: ClientNetwork, edge: Edge) -> None:
    """Lead to the stack's server again."""
    edge.postgres = stack.url(POSTGRES)
    network.postgres_leads_to(urlsplit(edge.postgres).port or 0)


def _leave(network: ClientNetwork, standby: PostgresServer) -> int:
    return network.postgres_leads_to(standby.port)


async def _until_synchronous(stack: Stack) -> None:
    """Let commits wait for the standby, and wait until it is in step. Raises ChaosFailed."""
    url = stack.url(POSTGRES)
    await execute(url, *_SYNCHRONOUS)

    async def in_step() -> bool:
        return bool(await ask(url, _SYNC))

    await until_answered(in_step, "the standby is synchronous", within=_IN_STEP_WITHIN)
