"""Orders through two workers, stock first: the happy path, each refusal, and input that comes twice."""

from __future__ import annotations

from collections import Counter

from agents.commands import OrderSubmitted
from tests.scenarios.test_dead_letter_desk import steadfaust
from tests.scenarios.world import World, eventually, order


def test_every_order_is_settled_once_with_the_outcome_its_data_calls_for(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    ids = [*world.place("first", 200), *submit(world, "submitted", 20)]
    world.until_settled(ids)
    world.check()
    outcomes = Counter(outcome for outcome, _ in world.expected.values())
    assert set(outcomes) == {"confirmed", "card_declined", "out_of_stock", "unsupported_destination"}
    ways = {each: "choreographed" if each.startswith("first") else "orchestrated" for each in ids}
    ends = {
        each: (way, "completed" if world.expected[each][0] == "confirmed" else "compensated")
        for each, way in ways.items()
    }
    eventually(lambda: sagas(world) == ends, "listed as sagas of both ways that have ended")


def submit(world: World, run: str, count: int) -> list[str]:
    """Submit orders, for a saga to see to; returns their ids."""
    submitted = [order(number, run) for number in range(count)]
    world.expected |= {each.order_id: (outcome, each.total_cents) for each, outcome in submitted}
    world.send([(OrderSubmitted(order=each), each.order_id) for each, _ in submitted])
    return [each.order_id for each, _ in submitted]


def sagas(world: World) -> dict[str, tuple[str, str]]:
    """What any worker lists, by order id."""
    found = steadfaust(world, "saga", "list", "--limit", "1000")
    return {saga["id"].removeprefix("order:"): (saga["way"], saga["status"]) for saga in found}


def test_orders_that_are_sent_twice_are_settled_once(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    ids = world.place("twice", 100, copies=2)
    world.until_settled(ids)
    again = world.place("twice", 100)  # the same messages once more, now that all is done
    later = world.place("later", 20)
    assert again == ids
    world.until_settled(later)
    world.check()
