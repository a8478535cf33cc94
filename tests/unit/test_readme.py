"""Programs of README, docs/sagas.md and examples/, in memory; tests/lane and tests/integration run others."""

import re
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from examples import first_handler, trip_saga
from examples.first_handler import POINTS, OrderPaid, Points
from examples.trip_saga import LeaveSeat, TakeMoney, TakeSeat, Trip, TripBooked, TripTransition
from streams.testing import given_saga, refused, run_choreography, success
from tests.readme import smallest_handler

PROGRAM = smallest_handler()


async def test_the_smallest_handler_of_readme_earns_points() -> None:
    found: dict[str, object] = {"__name__": "points"}
    exec(compile(PROGRAM, "README.md", "exec"), found)  # as it is printed
    app, paid, points, row = (found[name] for name in ("app", "OrderPaid", "POINTS", "Points"))
    two = [paid(customer="ada", cents=4900), paid(customer="ada", cents=250)]
    world = await run_choreography(app.wiring, two)
    assert world.row(points, "ada") == row(earned=51)


def test_it_is_short_and_has_one_import_line() -> None:
    written = [line for line in PROGRAM.splitlines() if line.strip()]
    assert len(written) <= 20
    assert [line for line in written if re.match(r"from|import", line)] == written[:1]


PAGE = Path(__file__).parents[2] / "docs" / "sagas.md"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    module = ModuleType("sagas_page")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    exec(compile(code, str(PAGE), "exec"), vars(module))  # as it is printed
    return module


def test_the_tests_of_the_page_pass(page: ModuleType) -> None:
    tests = [value for name, value in vars(page).items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


@pytest.mark.parametrize(
    ("city", "cents", "status"),
    [("Rome", 9_900, "completed"), ("Atlantis", 9_900, "compensated"), ("Rome", 990_000, "compensated")],
)
async def test_its_participants_answer_its_saga(page: ModuleType, city: str, cents: int, status: str) -> None:
    world = None
    for message in (page.TripBooked(trip="t", city=city, cents=cents), page.RoomConfirmed(trip="t")):
        world = await run_choreography(page.wiring, [message], timers="ignored", world=world)
    assert world is not None
    assert [each.after for each in world.sent(page.TripTransition) if not each.step][-1] == status


def test_the_page_has_every_word_of_the_test_language(page: ModuleType) -> None:
    words = {name for name in vars(type(page.given_saga(page.Trip))) if not name.startswith("_")}
    _, _, section = PAGE.read_text().partition("## A test, word by word")
    assert {word for word in words | {"now", "entries"} if f".{word}" not in section} == set()


EXAMPLES = sorted(p for p in (Path(__file__).parents[2] / "examples").glob("*.py") if p.stem[0] != "_")
#: Of text and code, blank ones aside.
LINES = 80


async def test_a_payment_that_comes_twice_earns_its_points_once() -> None:
    paid = [OrderPaid(customer="ada", cents=4900), OrderPaid(customer="ada", cents=250)]
    world = await run_choreography(first_handler.wiring, paid, order=Random(1), repeat=0.5)
    assert world.row(POINTS, "ada") == Points(earned=51)


def test_a_trip_without_money_gives_its_seat_back() -> None:
    given_saga(Trip).start(TripBooked(trip="moon", cents=990_000)).expect_command(TakeSeat).reply(
        success
    ).expect_command(TakeMoney, cents=990_000).reply(refused, reason="card_declined").expect_compensation(
        LeaveSeat
    ).reply(success).expect_status("compensated")


@pytest.mark.parametrize(("cents", "status"), [(9_900, "completed"), (990_000, "compensated")])
async def test_participants_answer_the_saga_of_a_trip(cents: int, status: str) -> None:
    booked = [TripBooked(trip="rome", cents=cents)]
    world = await run_choreography(trip_saga.wiring, booked, timers="ignored")
    assert [each.after for each in world.sent(TripTransition) if not each.step][-1] == status


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(example: Path) -> None:
    text = example.read_text()
    head = text.split('"""')[1]
    assert len([line for line in text.splitlines() if line]) <= LINES
    assert "By hand:" in head
    assert f"python -m examples.{example.stem}" in head
    assert "steadfaust up" in head
    assert f"-A examples.{example.stem} worker" in head or "app = " not in text
