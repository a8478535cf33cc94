import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from demo.evidence import Settlement
from demo.progress import OrderCounts, View
from demo.purchases import ExpectedOutcome, order, purchases

ORDERS = [order(purchase) for purchase in purchases(20)]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def settled(number: int, outcome: str = ExpectedOutcome.CONFIRMED) -> Settlement:
    return Settlement(f"m-{number}", ORDERS[number], outcome)


@given(st.lists(st.integers(0, 19), max_size=60))
def test_an_order_counts_once_however_often_it_is_settled(numbers: list[int]) -> None:
    tally = OrderCounts(20)
    for number in numbers:
        tally.settle([settled(number)])
    assert tally.settled == tally.outcomes.total() == len(set(numbers))


def test_it_is_done_when_all_are_placed_and_settled(clock: Clock) -> None:
    tally = OrderCounts(2, clock)
    tally.place("one")
    tally.settle([settled(0), settled(1)])
    assert not tally.done
    clock.now += 4
    tally.place("other")
    assert tally.done
    clock.now += 10
    assert (tally.seconds, tally.rate) == (4.0, 0.5)


def test_earlier_orders_count_but_not_in_the_rate(clock: Clock) -> None:
    tally = OrderCounts(3, clock)
    tally.resume([settled(0), settled(1)])
    assert (tally.settled, tally.seconds, tally.idle()) == (2, 0.0, 0.0)
    for number in range(3):
        tally.place(ORDERS[number].order_id)
    assert tally.under_way == 1  # what has come to its end does not come to another
    clock.now += 2
    tally.settle([settled(0), settled(2)])
    assert tally.under_way == 0
    assert tally.done
    assert (tally.seconds, tally.rate) == (2.0, 0.5)


def test_what_warms_up_is_settled_outside_the_rate(clock: Clock) -> None:
    tally = OrderCounts(6, clock, warm_up=2)
    for number in range(2):
        tally.place(ORDERS[number].order_id)
    clock.now += 10
    assert (tally.warming_up, tally.seconds, tally.elapsed) == (True, 0.0, 10.0)
    for number in range(2, 6):
        tally.place(ORDERS[number].order_id)
    assert not tally.warming_up
    clock.now += 2
    tally.settle(map(settled, range(6)))
    assert tally.done
    assert (tally.settled, tally.seconds, tally.elapsed, tally.rate) == (6, 2.0, 12.0, 2.0)
    assert tally.half_and_most() == (2.0, 12.0)


def test_it_sees_how_long_orders_are_under_way(clock: Clock) -> None:
    tally = OrderCounts(20, clock)
    for number in range(4):
        tally.place(ORDERS[number].order_id)
        clock.now += 1
    tally.settle([settled(1), settled(2)])
    assert tally.seen(within=2.0) == (2, 2, 3.0, 4.0)
    clock.now += 3
    assert tally.seen(within=2.0) == (2, 0, 0.0, 7.0)
    tally.settle([settled(0), settled(3)])
    assert tally.seen(within=2.0) == (0, 2, 7.0, 0.0)


def test_it_knows_how_long_nothing_has_moved(clock: Clock) -> None:
    tally = OrderCounts(20, clock)
    assert tally.idle() == 0.0
    tally.place("any")
    clock.now += 7
    assert tally.idle() == 7.0
    tally.settle([settled(0)])
    tally.settle([settled(0)])
    assert tally.idle() == 0.0
    clock.now += 3
    tally.settle([settled(0)])
    assert tally.idle() == 3.0


def test_without_a_terminal_it_prints_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    tally = OrderCounts(20, clock)
    tally.place("any")
    with View(tally, Console(file=io.StringIO())) as view:
        for _ in range(10):
            view.update([41, 42])
            clock.now += 0.5
        tally.settle([settled(0), settled(1, ExpectedOutcome.OUT_OF_STOCK)])
        view.update([42], last=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "confirmed 1  card_declined 0  out_of_stock 1" in lines[-1]
    assert lines[0].endswith("workers 41 42")
    assert lines[-1].endswith("workers 42")


def test_on_a_terminal_it_shows_the_same_in_place(clock: Clock) -> None:
    screen = io.StringIO()
    with View(OrderCounts(20, clock), Console(file=screen, force_terminal=True, width=120)) as view:
        view.update([])
    assert "out_of_stock" in screen.getvalue()
    assert "none" in screen.getvalue()
