"""The examples that need no server, in memory. tests/lane and tests/integration run the others."""

from pathlib import Path
from random import Random

import pytest

from examples import first_handler, trip_saga
from examples.first_handler import POINTS, OrderPaid, Points
from examples.trip_saga import LeaveSeat, TakeMoney, TakeSeat, Trip, TripBooked, TripTransition
from streams.testing import given_saga, refused, run_choreography, success

EXAMPLES = sorted(
    path for path in (Path(__file__).parents[2] / "examples").glob("*.py") if path.stem[0] != "_"
)
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
