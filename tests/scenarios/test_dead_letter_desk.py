"""An operator at the command line puts dead letters right and pauses a handler, with two real workers."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.messages import OrderPlaced
from tests.scenarios.desk import steadfaust
from tests.scenarios.world import World, order
from tests.waiting import eventually

pytestmark = pytest.mark.promise("dead-letter-desk", "with real workers")


def dlq(world: World, *words: str) -> list[dict[str, Any]]:
    return steadfaust(world, "dlq", *words)


def letters(world: World) -> dict[str, dict[str, Any]]:
    return {letter["key"]: letter for letter in dlq(world, "list")}


def test_letters_of_all_lanes_are_edited_discarded_and_replayed(world: World, tmp_path: Path) -> None:
    environment = {"STEADFAUST_EDIT_DEAD_LETTERS": "true", "STEADFAUST_WEB_PORT": "0"}
    world.until_shared([world.start_worker(**environment) for _ in range(2)])
    placed = [order(number, "desk")[0] for number in range(5, 13)]
    world.send(
        [(OrderPlaced(order=each), f"message-{each.order_id}") for each in placed],
        spoil=lambda value: value[:3],
    )
    eventually(lambda: len(letters(world)) == len(placed), "all are dead letters")
    (group,) = dlq(world, "groups")
    assert (group["count"], group["error_type"]) == (len(placed), "Undecodable")

    edited, discarded, *others = placed
    message = tmp_path / "order.json"
    message.write_bytes(msgspec.json.encode(OrderPlaced(order=edited)))
    ids = {key: letter["id"] for key, letter in letters(world).items()}
    dlq(world, "edit", ids[edited.order_id], "--message", str(message), "--why", "it was cut off")
    dlq(world, "discard", ids[discarded.order_id], "--why", "the customer has ordered anew")
    world.expected[edited.order_id] = ("confirmed", edited.total_cents)
    world.until_settled([edited.order_id])
    dlq(world, "replay", "--where", "state=dead", "--why", "they may decode now", "--yes", "--no-wait")
    eventually(
        lambda: [left["replays"] for left in letters(world).values()].count(1) == len(others), "in vain"
    )

    left = letters(world)
    states = {key: letter["state"] for key, letter in left.items()}
    assert states == {discarded.order_id: "discarded", **{each.order_id: "dead" for each in others}}
    (shown,) = dlq(world, "show", ids[others[0].order_id])
    assert [event["result"].partition(":")[0] for event in shown["history"]] == ["replaying", "failed again"]
    world.check()


@pytest.mark.verify("an erasure by the command; in `make test` lanes erase without it")
def test_a_command_erases_a_key_and_tells_what_is_left(world: World) -> None:
    world.until_shared([world.start_worker(STEADFAUST_WEB_PORT="0")])
    placed = order(5, "erased")[0]
    world.send([(OrderPlaced(order=placed), "to-be-erased")], spoil=lambda value: value[:3])
    eventually(lambda: placed.order_id in letters(world), "it is a dead letter")
    counted, report = (
        steadfaust(world, "erase", placed.order_id, "--why", "a request", option)[0]
        for option in ("--dry-run", "--yes")
    )
    assert counted["erased"] == report["erased"] == {"dead_letters": 1}
    assert {each["topic"] for each in report["left"]} == {OrderPlaced.TOPIC, f"{OrderPlaced.TOPIC}.dlq"}
    assert all(each["until"] for each in report["left"])
    eventually(lambda: placed.order_id not in letters(world), "the letter is gone")
