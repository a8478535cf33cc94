from collections import deque
from collections.abc import Callable

import pytest

from demo.evidence import Settlement
from demo.load import DemoPace, OrdersSeen
from demo.progress import OrderCounts
from demo.purchases import ExpectedOutcome, order, purchases

PACE = DemoPace(seconds=2.0, more=1.5, least=16, most=1000, patience=12.0)
ORDERS = [order(purchase) for purchase in purchases(20_000)]
TICK = 0.1


@pytest.mark.parametrize(
    ("seen", "room"),
    [
        pytest.param(OrdersSeen(0, 0, 0.0, 0.0), 16, id="nothing yet: a few feel their way"),
        pytest.param(OrdersSeen(16, 0, 0.0, 5.0), 0, id="until one of them comes back"),
        pytest.param(OrdersSeen(15, 1, 5.0, 5.0), 1, id="then as many as came back"),
        pytest.param(OrdersSeen(50, 100, 0.5, 0.6), 100, id="fast: half more than were settled"),
        pytest.param(OrdersSeen(150, 100, 2.0, 2.1), 0, id="as many are under way as may be"),
        pytest.param(OrdersSeen(50, 100, 8.0, 9.0), 0, id="a burst of orders that took long is no pace"),
        pytest.param(OrdersSeen(0, 4000, 0.5, 0.0), 1000, id="never more than so many"),
        pytest.param(OrdersSeen(10, 400, 0.5, 13.0), 6, id="some stand still: few beside them"),
        pytest.param(OrdersSeen(200, 400, 0.5, 13.0), 0, id="many stand still: none beside them"),
    ],
)
def test_how_many_are_placed(seen: OrdersSeen, room: int) -> None:
    assert PACE.room(seen) == room


def driven(
    capacity: Callable[[float], float], least_time: float, seconds: float, *, every: float = TICK
) -> tuple[list[float], list[float]]:
    """Orders at this pace through a queue that settles so many a second, each at least so long after it was
    placed, looked at once `every` so many seconds; when each was settled, and how long it took.
    """
    now = [0.0]
    tally = OrderCounts(len(ORDERS), lambda: now[0])
    queue: deque[tuple[int, float]] = deque()
    times, took, done = [], [], 0.0
    number, look = 0, 0.0
    while now[0] < seconds:
        done += capacity(now[0]) * TICK
        if now[0] >= look:  # what was settled meanwhile comes at once
            look = now[0] + every
            while queue and done >= 1 and now[0] - queue[0][1] >= least_time:
                settled, placed = queue.popleft()
                tally.settle([Settlement(f"m-{settled}", ORDERS[settled], ExpectedOutcome.CONFIRMED)])
                times.append(now[0])
                took.append(now[0] - placed)
                done -= 1
        done = min(done, capacity(now[0]) * every + 1)
        for _ in range(PACE.room(tally.seen(PACE.seconds))):
            tally.place(ORDERS[number].order_id)
            queue.append((number, now[0]))
            number += 1
        now[0] += TICK
    return times, took


@pytest.mark.parametrize("capacity", [5, 20, 100, 400])
@pytest.mark.parametrize("least_time", [0.2, 1.0])
def test_orders_take_a_few_seconds_on_any_machine(capacity: float, least_time: float) -> None:
    times, took = driven(lambda _: capacity, least_time, 40)
    assert max(took) <= max(2 * PACE.seconds, PACE.least / capacity + 1)
    late = sum(time > 20 for time in times)
    assert late >= 0.9 * capacity * 20  # and the machine has enough to do


def test_a_machine_that_becomes_slow_is_followed() -> None:
    times, took = driven(lambda now: 200 if now < 20 else 40, 0.5, 60)
    assert max(took) < 20  # what was under way when it came about, and under the time of a saga's step
    assert max(each for time, each in zip(times, took, strict=True) if time > 40) <= 2 * PACE.seconds


def test_bursts_are_paced_by_the_time_they_took() -> None:
    _, took = driven(lambda _: 60, 0.5, 60, every=5.0)
    assert max(took) <= 3 * 5.0
