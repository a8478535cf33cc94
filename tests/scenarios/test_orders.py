"""Orders through two workers, stock first: the happy path, each refusal, and input that comes twice."""

from __future__ import annotations

from collections import Counter

from tests.scenarios.world import World


def test_every_order_is_settled_once_with_the_outcome_its_data_calls_for(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    ids = world.place("first", 200)
    world.until_settled(ids)
    world.check()
    outcomes = Counter(outcome for outcome, _ in world.expected.values())
    assert set(outcomes) == {"confirmed", "card_declined", "out_of_stock", "unsupported_destination"}


def test_orders_that_are_sent_twice_are_settled_once(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    ids = world.place("twice", 100, copies=2)
    world.until_settled(ids)
    again = world.place("twice", 100)  # the same messages once more, now that all is done
    later = world.place("later", 20)
    assert again == ids
    world.until_settled(later)
    world.check()
