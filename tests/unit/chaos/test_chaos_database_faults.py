"""Faults of the database edge: each is seen to happen and to heal, or it did not happen."""

import itertools
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from chaos.faults.perform import perform
from chaos.rig.kinds import OF_DATABASE, FaultKind, Planned
from chaos.rig.processes import ChildProcess
from chaos.rig.waiting import ChaosFailed
from streams.postgres.relay.options import SHARDS
from tests.waiting import eventually_async

pytestmark = [
    pytest.mark.stack,
    pytest.mark.promise(
        "chaos",
        "a relay, an API or PostgreSQL that was not seen to end, or to do its work again within a "
        "minute, or a connection that stays at a former primary, makes a run fail",
    ),
]

RECOVERED = "LOG:  database system was not properly shut down; automatic recovery in progress\n"
#: It says that it has joined, and says so again when it is continued. It appends, as `Edge.tell` does: a
#: process that is slow to start would write its first line over what was told meanwhile.
JOINS = """
import fcntl, os, signal
fcntl.fcntl(1, fcntl.F_SETFL, os.O_APPEND)
def joined(*_): print('{"event": "relay_joined"}', flush=True)
signal.signal(signal.SIGCONT, joined)
joined()
while True: signal.pause()
"""


class Edge:
    """Two relays and two APIs that do nothing; what PostgreSQL would say of them, is set."""

    def __init__(self, var: Path) -> None:
        self._var = var
        self.postgres = "the former"
        self.processes: list[ChildProcess] = []
        self.answers = True
        self.publishes = True
        self.heirs = True
        self.tells = True
        for name in ("relay-0", "relay-1", "api-placed", "api-submitted"):
            self.process(name)

    def tell(self, event: str, error: str = "") -> None:
        for process in self.processes:
            if self.tells and process.name.startswith("relay"):
                with process.log.path.open("a") as file:
                    file.write(json.dumps({"event": event, "error": error}) + "\n")

    @asynccontextmanager
    async def locked_rows(self, *, within: float) -> AsyncIterator[tuple[int, int]]:
        assert within
        self.tell("relay_waits", "marking waits for a lock held by pid 4711 (operator)")
        yield 4711, 3

    def process(self, name: str) -> ChildProcess:
        log = self._var / f"{name}.{len(self.processes)}.log"
        self.processes.append(ChildProcess(name, log, [sys.executable, "-SE", "-c", JOINS], {}))
        return self.processes[-1]

    def named(self, name: str) -> ChildProcess:
        return next(each for each in self.processes if each.name == name and each.alive)

    async def start_relay(self, number: int) -> ChildProcess:
        return self.process(f"relay-{number}")

    async def start_api(self, way: str) -> ChildProcess:
        return self.process(f"api-{way}")

    async def owners(self) -> dict[int, int]:
        return {1: SHARDS} if self.heirs else {1: SHARDS // 2, 2: SHARDS // 2}

    async def last(self) -> int:
        return 17

    async def until_shared(self, *, within: float) -> None:
        """As relays do."""

    async def until_published(self, last: int, *, within: float) -> None:
        if not self.publishes:
            raise ChaosFailed(f"not within {within:g} s: the outbox is published up to {last}")

    async def until_settled_since(self, began: float, *, within: float) -> None:
        if not self.answers:
            raise ChaosFailed(f"not within {within:g} s: the projection writes")


class Stack:
    """PostgreSQL as a process that writes a log."""

    def __init__(self, var: Path) -> None:
        self.log = var / "postgres.log"
        self.log.write_text(f"of an earlier end: {RECOVERED}")
        self.pid = 100
        self.says = RECOVERED
        self.ends = True
        self.stopped = 0

    @property
    def state(self) -> Any:
        server = SimpleNamespace(pid=self.pid, log=str(self.log))
        return SimpleNamespace(processes={"postgres": server})

    def stop_process(self, name: str, _: int) -> None:
        assert name == "postgres"
        self.stopped += 1

    def start_process(self, name: str) -> None:
        assert name == "postgres"
        self.pid += self.ends
        with self.log.open("a") as file:
            file.write(self.says)


class Network:
    """Which holds so many chunks back while PostgreSQL is silent."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.held = 5
        self.stay = 0
        self._open = 3

    @contextmanager
    def postgres_silent(self) -> Iterator[Any]:
        self._edge.tell("relay_without_database")
        yield SimpleNamespace(count=self.held)

    def postgres_leads_to(self, _: int) -> int:
        found, self._open = self._open, self.stay
        return found


class Standby:
    """Which can be promoted."""

    url, port = "the promoted", 4712

    async def promote(self) -> None:
        """At once."""

    async def ask(self, question: str) -> int:
        assert "timeline" in question
        return 2


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The server that took the former's place, and what the edge was led to until then."""
    found: list[str] = []

    @asynccontextmanager
    async def a_standby(_: Any) -> AsyncIterator[Standby]:
        yield Standby()

    async def until_synchronous(_: Any) -> None:
        """At once."""

    async def replace_former(_: Any, standby: Standby) -> None:
        found.append(standby.url)

    def lead_back(_: Any, __: Any, edge: Edge) -> None:
        found.append(edge.postgres)

    monkeypatch.setattr("chaos.faults.failover.a_standby", a_standby)
    monkeypatch.setattr("chaos.faults.failover._until_synchronous", until_synchronous)
    monkeypatch.setattr("chaos.faults.failover.replace_former", replace_former)
    monkeypatch.setattr("chaos.faults.failover.lead_back", lead_back)
    return found


class Load:
    """Of which each API accepts an order at each look."""

    def __init__(self) -> None:
        self.goes_on = True
        self._looks = itertools.count()

    def accepted(self) -> Mapping[str, int]:
        number = next(self._looks) if self.goes_on else 0
        return Counter({"placed": number, "submitted": number})


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Any]:
    edge = Edge(tmp_path)
    fleet = SimpleNamespace(alive=[])
    network = Network(edge)
    yield SimpleNamespace(edge=edge, stack=Stack(tmp_path), load=Load(), fleet=fleet, network=network)
    for process in edge.processes:
        if process.alive:
            process.kill("the end of the test")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what never comes."""
    monkeypatch.setattr("chaos.faults.database.RECOVERS_WITHIN", 0.0)
    monkeypatch.setattr("chaos.faults.database.OPEN_WITHIN", 0.0)
    monkeypatch.setattr("chaos.faults.database.MEETS_WITHIN", 0.01)


def planned(kind: FaultKind, which: int = 0) -> Planned:
    return Planned(at=0.0, kind=kind, seconds=0.1, which=which)


async def fails(ground: Any, kind: FaultKind, told: str) -> None:
    with pytest.raises(ChaosFailed, match=told):
        await perform(planned(kind), ground)


@pytest.mark.parametrize(
    ("kind", "which", "target"),
    [
        (FaultKind.KILL_RELAY, 1, "relay-1"),
        (FaultKind.KILL_API, 0, "api-placed"),
        (FaultKind.KILL_API, 1, "api-submitted"),
    ],
)
async def test_the_killed_dies_and_is_replaced(ground: Any, kind: FaultKind, which: int, target: str) -> None:
    killed = ground.edge.named(target)
    done = await perform(planned(kind, which), ground)
    again = ground.edge.named(target)
    assert killed.exit_code == -9
    assert killed.expected == kind
    assert (done.kind, done.target) == (kind, target)
    assert done.confirmed.startswith(f"pid {killed.pid} ended by SIGKILL; ")
    assert f"pid {again.pid} in its place" in done.confirmed
    assert done.ended is not None


async def test_a_killed_postgresql_has_recovered(ground: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    away: list[tuple[float, int]] = []

    @asynccontextmanager
    async def lasting(seconds: float) -> AsyncIterator[None]:
        yield
        away.append((seconds, ground.stack.pid))

    monkeypatch.setattr("chaos.faults.database.lasting", lasting)
    done = await perform(planned(FaultKind.KILL_POSTGRES), ground)
    assert "pid 100 ended by SIGKILL" in done.confirmed
    assert "pid 101 in its place, recovered from its log" in done.confirmed
    assert done.ended is not None
    assert away == [(0.1, 100)], "it is started again when its time is over"


@pytest.mark.usefixtures("impatient")
async def test_a_postgresql_without_end_or_recovery_was_not_killed(ground: Any) -> None:
    shut_down = "LOG:  database system was shut down\n"
    for ground.stack.says, ground.stack.ends in ((shut_down, True), (RECOVERED, False)):
        await fails(ground, FaultKind.KILL_POSTGRES, "was not seen to end and to recover")


async def test_a_frozen_relay_continues_after_the_other_took_over(ground: Any) -> None:
    relay = ground.edge.named("relay-0")
    await eventually_async(lambda: relay.log.events("relay_joined"), "it runs")
    done = await perform(planned(FaultKind.FREEZE_RELAY), ground)
    assert "the other had all shards; awake, it joined again" in done.confirmed
    assert psutil.Process(relay.pid).status() != psutil.STATUS_STOPPED


async def test_a_silent_network_holds_back_and_relays_cut(ground: Any) -> None:
    done = await perform(planned(FaultKind.SILENT_POSTGRES), ground)
    assert done.confirmed.startswith("5 chunks held back in ")
    assert "both relays cut their connections" in done.confirmed


async def test_a_locked_row_is_waited_for_by_name(ground: Any) -> None:
    done = await perform(planned(FaultKind.LOCK_OUTBOX), ground)
    assert done.confirmed.startswith("pid 4711 locked 3 rows that waited, for ")


@pytest.mark.parametrize(("which", "how"), [(0, "writable"), (1, "killed")])
async def test_a_failover_is_over_when_the_former_is_replaced(
    ground: Any, replaced: list[str], which: int, how: str
) -> None:
    done = await perform(planned(FaultKind.FAILOVER_POSTGRES, which), ground)
    assert f"promoted to timeline 2, the former primary {how}; 3 connections left it" in done.confirmed
    assert replaced == ["the promoted", "the promoted"]
    assert ground.stack.stopped == which


@pytest.mark.usefixtures("impatient", "replaced")
async def test_a_connection_that_stays_at_a_former_primary_is_told(
    ground: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.failover.RECOVERS_WITHIN", 0.0)
    ground.network.stay = 1
    await fails(ground, FaultKind.FAILOVER_POSTGRES, "left at the former primary")


@pytest.mark.usefixtures("impatient")
async def test_a_silence_that_nobody_met_did_not_happen(ground: Any) -> None:
    ground.network.held = 0
    await fails(ground, FaultKind.SILENT_POSTGRES, "nothing was on its way to PostgreSQL")
    ground.edge.tells = False
    await fails(ground, FaultKind.SILENT_POSTGRES, "cuts its silent connection")
    await fails(ground, FaultKind.LOCK_OUTBOX, "a relay waits for pid 4711")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", [FaultKind.KILL_RELAY, FaultKind.FREEZE_RELAY])
async def test_a_relay_whose_shards_stay_was_not_hit(ground: Any, kind: FaultKind) -> None:
    relay = ground.edge.named("relay-0")
    ground.edge.heirs = False
    await fails(ground, kind, "one relay has all shards")
    if kind is FaultKind.FREEZE_RELAY:
        assert psutil.Process(relay.pid).status() != psutil.STATUS_STOPPED


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("kind", sorted(OF_DATABASE - {FaultKind.FREEZE_RELAY}))
async def test_an_edge_that_does_not_publish_again_has_not_healed(ground: Any, kind: FaultKind) -> None:
    ground.edge.publishes = False
    await fails(ground, kind, "the outbox is published up to 17")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", [FaultKind.KILL_API, FaultKind.KILL_POSTGRES])
async def test_a_silent_edge_has_not_healed(ground: Any, kind: FaultKind) -> None:
    ground.edge.answers = False
    await fails(ground, kind, "the projection writes")
    ground.load.goes_on = False
    await fails(ground, kind, "each orders API accepts an order")
