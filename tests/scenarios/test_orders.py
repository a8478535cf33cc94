"""Orders through two workers, stock first: the happy path, each refusal, and input that comes twice."""

from collections import Counter
from urllib.request import urlopen

import pytest

from agents.cancellation import CancellationRefused, RequestCancellation
from agents.commands import OrderSubmitted
from streams.model.row_keys import split_row_key
from tables.ways import ORDER_WAYS
from tests.scenarios.test_dead_letter_desk import steadfaust
from tests.scenarios.world import APP, World, order
from tests.waiting import eventually


@pytest.mark.promise("orders-settled")
def test_every_order_is_settled_once_and_rightly(world: World) -> None:
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
    for each in [next(each for each in ids if ends[each] == end) for end in sorted({*ends.values()})]:
        page_tells_why(world, each)


def page_tells_why(world: World, order_id: str) -> None:
    """Whoever searches for an order finds on one page what became of it, and which message says so."""
    outcome, _ = world.expected[order_id]
    with urlopen(f"{world.address()}/search?q={order_id}") as answer:
        page = answer.read().decode()
    (found,) = steadfaust(world, "trace", order_id)
    types = [entry["type"] for entry in found["entries"]]
    causes = {entry["type"] for entry in found["entries"] if outcome in str(entry["value"])}
    if outcome == "confirmed":
        assert types.count("OrderConfirmed") == 1, types
    else:
        assert types.count("OrderCancelled") == 1, types
        assert len(causes) > 1, types  # the message that says no, and the end that it led to
    (all_of_it,) = steadfaust(world, "trace", order_id, "--everywhere")  # the messages of its stock, too
    assert len(all_of_it["entries"]) > len(types)
    uncaused = [entry["type"] for entry in all_of_it["entries"] if not entry["cause"]]
    assert uncaused in (["OrderPlaced"], ["OrderSubmitted"])
    assert f"/sagas/order%3A{order_id}" in page
    for word in (*types, outcome):
        assert word in page


def submit(world: World, run: str, count: int) -> list[str]:
    """Submit orders, for a saga to see to; returns their ids."""
    submitted = [order(number, run) for number in range(count)]
    world.expected |= {each.order_id: (outcome, each.total_cents) for each, outcome in submitted}
    world.send([(OrderSubmitted(order=each), each.order_id) for each, _ in submitted])
    return [each.order_id for each, _ in submitted]


def sagas(world: World) -> dict[str, tuple[str, str]]:
    found = steadfaust(world, "saga", "list", "--limit", "1000")
    return {saga["id"].removeprefix("order:"): (saga["way"], saga["status"]) for saga in found}


@pytest.mark.promise("one-way")
@pytest.mark.promise("cancelled-orders")
@pytest.mark.verify("unit/agents/test_cancellation_properties.py")
def test_an_order_called_off_in_time_is_undone(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    early = [f"early-{number}" for number in range(20)]
    call_off(world, early)
    eventually(lambda: {*early} <= ways(world), "cancellations are there before their orders")
    ids = [*world.place("early", 20), *world.place("placed", 60), *submit(world, "conducted", 60)]
    both = world.place("both", 40)
    submit(world, "both", 40)
    called_off = [*early, *ids[20::2], *both[::2]]
    call_off(world, ids[20::2] + both[::2])
    world.until_settled([*ids, *both])
    ends = world.outcomes()
    assert {each: ends[each] for each in early} == {each: ["cancelled"] for each in early}
    for order_id in called_off:  # those that came too late, or failed before, are as they were
        if ends[order_id] == ["cancelled"]:
            world.expected[order_id] = ("cancelled", world.expected[order_id][1])
    world.check()
    confirmed = {each for each in called_off if world.expected[each][0] == "confirmed"}
    eventually(lambda: told(world) == confirmed, "whoever came too late was told")

    late = [each for each in ids if world.expected[each][0] == "confirmed" and each not in called_off]
    call_off(world, late)
    eventually(lambda: told(world) == confirmed | {*late}, "whoever came after the end was told")
    world.check()


def told(world: World) -> set[str]:
    """Orders of which somebody was told that they cannot be called off any more."""
    return {each.key.decode() for each in world.read(CancellationRefused.TOPIC)}


def ways(world: World) -> set[str]:
    """Orders of which it is known which way they go, or that they are called off."""
    return {split_row_key(row.key)[0].decode() for row in world.read(f"{APP}-{ORDER_WAYS.name}-changelog")}


def call_off(world: World, ids: list[str]) -> None:
    """Ask for the cancellation of these orders."""
    world.send([(RequestCancellation(order_id=each), f"cancel-{each}") for each in ids])


@pytest.mark.promise("duplicates")
def test_orders_that_are_sent_twice_are_settled_once(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    ids = world.place("twice", 100, copies=2)
    world.until_settled(ids)
    again = world.place("twice", 100)  # the same messages once more, now that all is done
    later = world.place("later", 20)
    assert again == ids
    world.until_settled(later)
    world.check()
