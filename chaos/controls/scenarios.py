"""For each protection: the faults that it is there for, and what must be found wrong without it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from chaos.controls.hasty import Control
from chaos.controls.stage import APP, BEFORE, LANES, ORDERS, Stage
from chaos.faults.failover import a_standby, lead_back, replace_former, until_left
from chaos.faults.ground import lasting
from chaos.rig.access import REFUSALS, denied_group
from chaos.rig.log_pipe import waits_for_reader
from chaos.rig.network import POSTGRES
from chaos.rig.postgres_server import until_in_step
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed, until
from demo.purchases import purchases

_HAPPENS_WITHIN = 60.0
#: Several times as long as a program takes to find that its sessions are at a former primary.
_LEAVES_WITHIN = 30.0
_SESSION_TIMEOUT = 6.0
#: A worker that comes back within it has the same lanes, on a machine under whatever load.
_LONG_SESSION_TIMEOUT = 60.0
#: How long a zombie is frozen: until another has opened its lanes, but not as long as a transaction may
#: take (15 s): without fencing, its open transactions hold up the next owner of its lanes.
_ZOMBIE_AT_LEAST = _SESSION_TIMEOUT + 2.0
_ZOMBIE_AT_MOST = 13.0


@dataclass(frozen=True)
class Scenario:
    """Input and faults, the same with and without the control.

    Attributes:
        copies: how often the client sends each message.
        poison_every: after one order in so many comes a poisonous record; 0: after none.
        script: the faults of one of the workers, as `streams.testing.faults` reads them.
        play: sees to the rest of the faults, and that they happen.
        meanwhile: it is called before the first order is placed, as with a script; otherwise when the last
            one is.
        finds: the finding that must be red with the control, by its name.
        session_timeout: of the workers, in seconds.
        over_http: whether orders go to the orders APIs, and not to Kafka.
    """

    control: Control
    says: str
    copies: int
    script: str
    play: Callable[[Stage], Coroutine[Any, Any, Happened]]
    finds: str
    session_timeout: float = _SESSION_TIMEOUT
    poison_every: int = 0
    over_http: bool = False
    meanwhile: bool = False


async def _repeat(stage: Stage) -> Happened:
    began, ended = stage.span
    records, messages = await stage.repeats()
    twice = records == 2 * messages
    return Happened(
        kind="duplicate_input",
        target="orders and stock receipts",
        began=began,
        ended=ended,
        confirmed=f"{records:,} records are {messages:,} messages" if twice else "",
    )


async def _freeze(stage: Stage) -> Happened:
    zombie, heir = stage.faulty, stage.steady
    process = psutil.Process(zombie.pid)
    await until(
        lambda: stage.faults_log.exists() and process.status() == psutil.STATUS_STOPPED,
        f"{zombie.name} stops itself",
        within=_HAPPENS_WITHIN,
    )
    began = time.time()
    every = frozenset(range(LANES))

    def done() -> bool:
        frozen = time.time() - began
        return frozen > (_ZOMBIE_AT_LEAST if heir.open_lanes == every else _ZOMBIE_AT_MOST)

    await until(done, "the zombie's time is over", within=_ZOMBIE_AT_MOST + 1.0)
    was_frozen, taken = process.status() == psutil.STATUS_STOPPED, heir.lanes == every
    mark = zombie.log.mark()
    zombie.thaw()
    ended = time.time()
    await until(
        lambda: zombie.log.events("lanes_assigned", mark),
        f"{zombie.name} is a member again",
        within=_HAPPENS_WITHIN,
    )
    frozen = f"was frozen at {_point(stage)} for {ended - began:.1f} s"
    return Happened(
        kind="freeze_at_point",
        target=zombie.name,
        began=began,
        ended=ended,
        confirmed=f"{frozen}, {heir.name} had its lanes" if was_frozen and taken else "",
    )


async def _kill(stage: Stage) -> Happened:
    victim = stage.faulty
    victim.expected = "it kills itself, by its script"
    had = victim.lanes
    await until(lambda: not victim.alive, f"{victim.name} kills itself", within=_HAPPENS_WITHIN)
    began = time.time()
    killed = victim.exit_code == -signal.SIGKILL and stage.faults_log.exists()
    heir = await stage.fleet.start(victim.slot)
    await until(lambda: heir.open_lanes, f"{heir.name} opens its lanes again", within=_HAPPENS_WITHIN)
    came_back = heir.lanes == had
    return Happened(
        kind="kill_at_point",
        target=victim.name,
        began=began,
        ended=time.time(),
        confirmed=f"killed at {_point(stage)}, back on its lanes' stores" if killed and came_back else "",
    )


async def _fail_over(stage: Stage) -> Happened:
    """A standby that has all is promoted, and the former primary can be written. New connections lead to the
    promoted one, and in the end nothing else is left. Most orders are placed when no connection should be at
    the former any more.
    """
    assert stage.database is not None
    database = stage.database
    network, began = database.network, time.time()
    await database.until_quiet(stage.bootstrap)
    async with a_standby(database.stack) as standby:
        await until_in_step(database.stack.url(POSTGRES), standby)
        await standby.promote()
        former = network.postgres_leads_to(standby.port)
        database.edge.postgres = standby.url
        with suppress(ChaosFailed):  # which the checker is to notice by itself
            await until_left(network, standby, within=_LEAVES_WITHIN)
        left = former - network.postgres_leads_to(standby.port)
        await database.place(purchases(ORDERS)[BEFORE:])
        await database.edge.until_published(await database.edge.last(), within=_HAPPENS_WITHIN)
        await replace_former(database.stack, standby)
        lead_back(database.stack, network, database.edge)
    await database.until_quiet(stage.bootstrap)
    return Happened(
        kind="failover_postgres",
        target="PostgreSQL",
        began=began,
        ended=time.time(),
        confirmed=f"{left} of {former} connections left the former primary by themselves" if former else "",
    )


async def _deny_group(stage: Stage) -> Happened:
    workers = (stage.steady, stage.faulty)

    def refused() -> int:
        said = [
            str([*worker.log.events("membership_waits"), *worker.log.events("worker_stops")])
            for worker in workers
        ]
        return sum(any(words in each for words in REFUSALS) for each in said)

    began = time.time()
    async with denied_group(stage.bootstrap, APP), lasting(_SESSION_TIMEOUT + 2.0):
        await until(
            lambda: refused() == len(workers), "both workers say what is refused", within=_HAPPENS_WITHIN
        )
    ended = time.time()
    names = " and ".join(worker.name for worker in workers)
    return Happened(
        kind="group_denied",
        target=names,
        began=began,
        ended=ended,
        confirmed=f"nobody had the group for {ended - began:.1f} s; both workers said that it was refused",
    )


async def _read_no_logs(stage: Stage) -> Happened:
    """Until the workers have ended: those that do not within their grace are killed."""
    workers = (stage.steady, stage.faulty)
    began = time.time()
    for worker in workers:
        worker.output.stop_reading()
    await until(
        lambda: all(waits_for_reader(worker.pid) for worker in workers),
        "both workers have something to log, and nobody reads it",
        within=_HAPPENS_WITHIN,
    )
    return Happened(
        kind="unread_logs",
        target=" and ".join(worker.name for worker in workers),
        began=began,
        ended=None,
        confirmed="a thread of each worker stood in write(2) to its full pipe; nobody read it until the end",
    )


def _point(stage: Stage) -> str:
    """Where it happened, as the worker itself has noted it."""
    return stage.faults_log.read_text().split()[0]


SCENARIOS = (
    Scenario(
        Control.INBOX_OFF,
        "every order and every stock receipt is sent twice",
        copies=2,
        script="",
        play=_repeat,
        finds="received = on hand + shipped",
    ),
    Scenario(
        Control.FENCING_OFF,
        "a worker is frozen in a commit until another has its lanes, then goes on",
        copies=1,
        script="begun:8:stop",
        play=_freeze,
        finds="every message there once",
    ),
    Scenario(
        Control.STORE_BEFORE_COMMIT,
        "a worker is killed in a commit and restarted on its directory",
        copies=1,
        script="sent:8:kill",
        play=_kill,
        finds="every order settled exactly once",
        session_timeout=_LONG_SESSION_TIMEOUT,
    ),
    Scenario(
        Control.LETTERS_APART,
        "a worker is killed in a commit that has dead letters and restarted on its directory",
        copies=1,
        script="sent:2:kill",
        play=_kill,
        finds="every poisonous record a dead letter once, and nothing else",
        session_timeout=_LONG_SESSION_TIMEOUT,
        poison_every=1,
    ),
    Scenario(
        Control.FORMER_PRIMARY_KEPT,
        "PostgreSQL fails over, and its former primary can be written",
        copies=1,
        script="",
        play=_fail_over,
        finds="every order that was accepted is in PostgreSQL and on Kafka once",
        over_http=True,
    ),
    Scenario(
        Control.REFUSALS_END,
        "the right to read the group is taken from all workers for longer than a session",
        copies=1,
        script="",
        play=_deny_group,
        finds="every order settled exactly once",
        meanwhile=True,
    ),
    Scenario(
        Control.LOGS_WAIT,
        "nobody reads what the workers log, which is a dead letter now and then",
        copies=1,
        script="",
        play=_read_no_logs,
        finds="every order settled exactly once",
        poison_every=5,
        meanwhile=True,
    ),
)
