"""`simulate` for handlers of somebody's own: what it finds, what it lets pass, and the page about it."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from agents.choreographies import stock_first
from agents.commands import OrderSubmitted
from agents.messages import Order, OrderLine, OrderPlaced, StockReceived
from agents.order_saga import orchestrated
from agents.payments.gateway import Charge, Refund
from streams import Envelope, Message, Outcome, Row, Service, Table, Timer, choreography, nothing, on, outcome
from streams.errors import WiringError
from streams.testing import Send, SimulatedWorld, SimulationFailed, simulate
from tests.waiting import BOUND

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulation.md").read_text()


class Paid(Message, frozen=True, kw_only=True):
    """A customer has paid."""

    TOPIC: ClassVar[str] = "users.paid.v1"
    customer: str
    cents: int

    @property
    def key(self) -> str:
        return self.customer


class Told(Message, frozen=True, kw_only=True):
    """Another customer hears of it."""

    TOPIC: ClassVar[str] = "users.told.v1"
    customer: str
    text: str = ""

    @property
    def key(self) -> str:
        return self.customer


class Sum(Row, frozen=True, kw_only=True):
    """What a customer has."""

    cents: int = 0
    text: str = ""


SUMS = Table("sums", Sum)
service = Service("users")
TOTALS: dict[str, int] = {}
SEEN: set[str] = set()
COUNT = 0


def workload(rng: Random) -> Iterator[Message | Send]:
    """Some payments."""
    for _ in range(rng.choice((3, 10))):
        yield Paid(customer=rng.choice("ab"), cents=rng.randint(1, 9))


class Gateway:
    """Numbers what it is asked; it does not know what it has done already."""

    def __init__(self) -> None:
        self.asked = 0

    async def number(self, clock: Any) -> int:
        self.asked += 1
        mine = self.asked
        await clock.sleep(2)
        return mine


def added(row: Sum | None, cents: int) -> Outcome:
    return outcome(row=Sum(cents=(row or Sum()).cents + cents))


@service.handler(row=SUMS)
def good(paid: Paid, row: Sum | None) -> Outcome:
    return added(row, paid.cents)


@service.handler(row=SUMS)
def sums_in_a_global(paid: Paid, row: Sum | None) -> Outcome:
    TOTALS[paid.customer] = TOTALS.get(paid.customer, 0) + paid.cents
    return outcome(row=Sum(cents=TOTALS[paid.customer]))


@service.handler(row=SUMS)
def counts_in_a_global(paid: Paid, row: Sum | None) -> Outcome:
    global COUNT
    COUNT += 1
    return outcome(row=Sum(cents=COUNT))


@service.handler(row=SUMS)
def knows_ids(paid: Paid, row: Sum | None, *, envelope: Envelope) -> Outcome:
    if envelope.id in SEEN:
        return nothing("seen")
    SEEN.add(envelope.id)
    return added(row, paid.cents)


@service.handler(row=SUMS)
def draws(paid: Paid, row: Sum | None) -> Outcome:
    return added(row, random.randint(0, 1000))


@service.handler(sends=[Told])
def makes_an_id(paid: Paid) -> Outcome:
    return outcome(send=[Told(customer="c", text=str(uuid4()))])


@service.handler(row=SUMS)
def reads_the_real_time(paid: Paid, row: Sum | None) -> Outcome:
    return outcome(row=Sum(text=str(time.time_ns())))


@service.handler(row=SUMS)
async def asks_again(paid: Paid, row: Sum | None, *, gateway: Gateway, clock: Any) -> Outcome:
    return outcome(row=Sum(cents=await gateway.number(clock)))


@service.handler(row=SUMS)
async def awaits_in_between(paid: Paid, row: Sum | None, *, clock: Any) -> Outcome:
    was = TOTALS.get("all", 0)
    await clock.sleep(1)
    TOTALS["all"] = was + 1
    return outcome(row=Sum(cents=TOTALS["all"]))


@service.handler(sends=[Told], row=SUMS)
def takes_the_clock(paid: Paid, row: Sum | None, *, clock: Any, envelope: Envelope) -> Outcome:
    now = clock.now()
    told = Told(customer=f"after-{paid.customer}", text=envelope.id)
    timers = [Timer(envelope.id, now + paid.cents, told)]
    return outcome(row=Sum(cents=int(now), text=envelope.time), timers=timers)


@service.handler(row=SUMS)
def hears(told: Told, row: Sum | None) -> Outcome:
    return outcome(row=Sum(text=(row or Sum()).text + told.text))


def wrong(seeds: range, handler: Any, **more: Any) -> str:
    """What is said of the first of these seeds that fails."""
    for seed in seeds:
        try:
            simulate(choreography(on(Paid, handler)), workload, seed, **more)
        except SimulationFailed as failed:
            return str(failed)
    raise AssertionError(f"{handler.name} passes")


def gateway() -> Mapping[str, Any]:
    return {"gateway": Gateway()}


@pytest.mark.parametrize(
    "handler",
    [sums_in_a_global, counts_in_a_global, knows_ids, draws, makes_an_id, reads_the_real_time, asks_again,
     awaits_in_between],
    ids=lambda each: each.name,
)  # fmt: skip
def test_a_wrong_handler_is_found_and_explained(handler: Any) -> None:
    said = wrong(range(60), handler, resources=gateway)
    assert "not as in a run without faults" in said
    assert re.search(r"expected  .+\n\s+found     .+\n\s+where     users\.\w+ handles Paid", said), said


def test_a_failing_run_is_the_same_each_time() -> None:
    assert wrong(range(60), sums_in_a_global) == wrong(range(60), sums_in_a_global)
    assert not TOTALS, "the globals of the test itself are as they were"


def test_a_handler_may_use_the_clock_and_timers() -> None:
    wiring = choreography(on(Paid, takes_the_clock, good), on(Told, hears))
    worlds = [simulate(wiring, workload, seed) for seed in range(20)]
    assert any(world.sent(Told) for world in worlds)
    assert any(len(world.all_rows(SUMS)) == 4 for world in worlds)


def test_a_check_of_the_users_own_is_judged() -> None:
    def check(world: SimulatedWorld) -> None:
        assert sum(row.cents for row in world.all_rows(SUMS).values()) < 10, "too much"

    assert "check: too much" in wrong(range(20), good, check=check)


@service.handler(row=SUMS)
def refuses(paid: Paid, row: Sum | None) -> Outcome:
    if paid.cents == 5:
        raise ValueError("five")
    return added(row, paid.cents)


@service.handler(row=SUMS)
def forgets(paid: Paid, row: Sum | None) -> Outcome:
    added(row, paid.cents)  # nothing is returned
    return None  # type: ignore[return-value]


@service.handler(row=SUMS)
def mistypes(paid: Paid, row: Sum | None) -> Outcome:
    return outcome(rwo=added(row, paid.cents).rows["row"])


@service.handler(row=SUMS)
def writes_another_row(paid: Paid, row: Sum | None) -> Outcome:
    return outcome(row=Told(customer=paid.customer))


@pytest.mark.parametrize("dead", [(), (Exception,)])
@pytest.mark.parametrize("handler", [forgets, mistypes, writes_another_row], ids=lambda each: each.name)
def test_a_wrong_outcome_always_fails_a_run(handler: Any, dead: Any) -> None:
    said = wrong(range(3), handler, dead=dead)
    assert re.search(rf"a dead letter: \d+ of {handler.name}, .*Unencodable", said), said


def test_dead_letters_that_nobody_declared_fail_a_run() -> None:
    said = wrong(range(3), refuses)
    assert "of users.refuses, such as key" in said
    assert "ValueError: five" in said
    assert "dead=(ValueError,)" in said
    assert "a dead letter" in wrong(range(3), refuses, dead=(KeyError,))


def test_what_handlers_may_give_up_is_no_finding() -> None:
    worlds = [simulate(choreography(on(Paid, refuses)), workload, n, dead=(Exception,)) for n in range(3)]
    dead = [(name, message) for world in worlds for name, message in world.dead]
    assert dead
    assert all(name == "users.refuses" and isinstance(m, Paid) and m.cents == 5 for name, m in dead)


def orders(kind: type[Any]) -> Any:
    def placed(rng: Random) -> Iterator[Message | Send]:
        for sku in ("apple", "pear"):
            yield Send(StockReceived(sku=sku, units=rng.choice((1, 20))), at=0.0)
        for number in range(rng.randint(1, 4)):
            yield kind(order=order(f"o-{number}"))

    return placed


def order(order_id: str) -> Order:
    lines = (OrderLine(sku="apple", units=2),)
    rest: Any = {"lines": lines, "total_cents": 1250, "card": "tok_accepted", "country": "US"}
    return Order(order_id=order_id, customer="c-1", **rest)


class Cards:
    """Does each operation once, and answers it again."""

    async def charge(self, *, operation: str, cents: int, card: str) -> Any:
        return Charge(f"ch-{operation}", operation, "captured", "", cents)

    async def refund(self, *, operation: str, charge_operation: str) -> Any:
        return Refund(f"re-{operation}", operation, charge_operation, "refunded", 1250)


def test_the_order_application_passes_choreography_and_saga() -> None:
    wiring = choreography(*stock_first.routes.values(), *orchestrated)
    for seed in range(4):
        for kind in (OrderPlaced, OrderSubmitted):
            simulate(wiring, orders(kind), seed, resources=lambda: {"gateway": Cards()})


@pytest.mark.parametrize(
    ("yielded", "says"),
    [
        (["nothing"], "yield messages, or Send"),
        ([Told(customer="a")], "no line of the wiring takes"),
        ([Paid(customer="a", cents=1)] * 2000, "more than 1000 messages"),
    ],
)
def test_a_workload_that_does_not_fit_is_refused(yielded: list[Any], says: str) -> None:
    with pytest.raises(WiringError, match=says):
        simulate(choreography(on(Paid, good)), lambda _: yielded, 0)


def test_what_is_no_app_is_refused() -> None:
    with pytest.raises(WiringError, match="give a choreography"):
        simulate([], workload, 0)
    with pytest.raises(WiringError, match="a stand-in for each"):
        simulate(choreography(on(Paid, asks_again)), workload, 0)
    sent = choreography(on(Paid, makes_an_id), on(Told, hears))
    with pytest.raises(WiringError, match="which handlers send"):
        simulate(sent, lambda _: [Told(customer="a")], 0)


# -- the command and its page ---------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The files of the page."""
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "points.py").write_text(programs[0])
    (tmp_path / "test_points.py").write_text(programs[1])
    return tmp_path


def command(where: Path, *asked: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONHASHSEED", None)
    line = [sys.executable, "-m", "streams.testing.simulate", *asked]
    return subprocess.run(
        line, cwd=where, env=environment, capture_output=True, text=True, timeout=BOUND, check=False
    )


def form_of(printed: str) -> list[str]:
    """A run without what another order of the lane's work changes: steps, numbers, and who was where."""
    told = re.sub(r"True|False|[\d.]+", "#", printed)
    told = re.sub(r"(after +|OrderPaid, ).*", r"\1", re.sub(r"\(.*?\)", "", told))
    return [line for line in told.splitlines() if not line.startswith("       ")]


def test_the_page_shows_what_the_command_prints(example: Path) -> None:
    asked = re.findall(r"^python -m streams\.testing\.simulate (.*--shrink)$", PAGE, re.MULTILINE)[0]
    ran = command(example, *asked.split())
    assert ran.returncode == 1, ran.stderr
    shown = re.findall(r"```\n(seed .*?)\n```", PAGE, re.DOTALL)
    first, *_ = re.split(r"\n(?=seed)", ran.stdout)
    assert form_of(first) == form_of(shown[0])
    assert "20 of 22 seeds" in ran.stderr


def test_the_handler_that_the_page_mends_passes(example: Path) -> None:
    points = (example / "points.py").read_text()
    line = re.findall(r"```python\n(    return .*?)```", PAGE, re.DOTALL)[0]
    head, _, _ = points.partition("    TOTALS[")
    (example / "points.py").write_text(head + line + points[points.index("\nwiring =") :])
    ran = command(example, "points:wiring", "--workload", "test_points:workload", "--seeds", "0:19")
    assert (ran.returncode, ran.stdout) == (0, "seeds 0:19: 0 failed\n"), ran.stderr


@pytest.mark.parametrize("seeds", ["5:5", "5:"])
def test_a_range_without_a_seed_is_refused(example: Path, seeds: str) -> None:
    ran = command(example, "points:wiring", "--workload", "test_points:workload", "--seeds", seeds)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"argument --seeds: {seeds!r}" in ran.stderr


def test_a_seed_is_printed_the_same_each_time(example: Path) -> None:
    asked = ("points:wiring", "--workload", "test_points:workload", "--seed", "1", "--verbose")
    first, second = (command(example, *asked) for _ in range(2))
    assert first.stdout == second.stdout
    assert "settled" in first.stdout


def test_each_failing_run_is_a_line_of_json(example: Path) -> None:
    ran = command(
        example, "points:wiring", "--workload", "test_points:workload", "--seeds", "10:14", "--json"
    )
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert told
    assert all(each["findings"][0]["invariant"] == "not as in a run without faults" for each in told)


@pytest.mark.parametrize(
    ("dead", "status"),
    [
        ("", 1),
        ("--dead PermanentError", 0),
        ("--dead ValueError", 1),
        ("--dead points:Odd", 1),
    ],
)
def test_the_command_is_told_which_errors_give_up_messages(example: Path, dead: str, status: int) -> None:
    points = (example / "points.py").read_text()
    head, _, _ = points.partition("    TOTALS[")
    failing = head + "    raise PermanentError('always')\n" + points[points.index("\nwiring =") :]
    (example / "points.py").write_text(
        "from streams import PermanentError\n" + failing + "\nclass Odd(Exception): ...\n"
    )
    ran = command(
        example, "points:wiring", "--workload", "test_points:workload", "--seeds", "0:2", *dead.split()
    )
    assert ran.returncode == status, ran.stderr


@pytest.mark.parametrize(
    "asked",
    [
        "points:wiring --workload test_points:workload --dead Nonsense",
        "points:none --workload test_points:workload",
        "points:wiring",
        "none:x --workload points:x",
    ],
)
def test_what_cannot_be_run_is_status_two(example: Path, asked: str) -> None:
    ran = command(example, *asked.split())
    assert ran.returncode == 2, ran.stdout
    assert "error: " in ran.stderr
