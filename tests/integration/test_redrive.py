"""`steadfaust dlq foreign` on real Kafka: letters of other programs go back once, whatever is killed."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer

from streams.host.client import TopicReader
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.ports import Record, TopicSpec
from tests.integration.stacks import steadfaust
from tests.unit.streams.test_foreign_letters import CONNECT, COPIED, OWN, SPRING, STREAMS
from tests.waiting import BOUND

ROOT = Path(__file__).parents[2]
PARTITIONS = 4


class Shop:
    def __init__(self, bootstrap: str) -> None:
        name = uuid4().hex[:8]
        self.orders, self.letters, self.log = f"orders-{name}", f"orders-{name}.DLT", f"redriven-{name}"
        self.settings = {"STEADFAUST_BOOTSTRAP": bootstrap, "STEADFAUST_APP_ID": "any"}
        self.bootstrap = bootstrap

    async def fill(self, count: int, *forms: list[tuple[str, bytes]]) -> None:
        """Make the topics, and letters in turn of these forms, of partition 3 of the topic."""
        async with KafkaTopics(self.bootstrap) as topics:
            await topics.create([TopicSpec(name, PARTITIONS, 1) for name in (self.orders, self.letters)])
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=20) as producer:
            for number in range(count):
                headers = [
                    (name, self.orders.encode() if value == b"orders" else value)
                    for name, value in forms[number % len(forms)]
                ]
                key, value = f"o-{number}".encode(), f"value {number}".encode()
                await producer.send(self.letters, value, key=key, headers=[*OWN, *headers])

    async def read(self, topic: str) -> list[Record]:
        async with TopicReader(self.bootstrap, [topic]) as reader:
            return [record async for record in reader.to_end()]

    def command(self, *arguments: str) -> list[str]:
        why = ("--why", "they were fixed") if arguments[0] == "replay" else ()
        return ["dlq", "foreign", arguments[0], self.letters, "--log", self.log, *why, *arguments[1:]]

    def run(self, *arguments: str, expect: int = 0) -> list[dict[str, Any]]:
        ran = steadfaust(*self.command(*arguments), "--json", **self.settings)
        assert ran.returncode == expect, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    def kill_after(self, transactions: int) -> bool:
        """Start a replay, and kill it after so many transactions; False when it came to its end."""
        arguments = self.command("replay", "--yes", "--rate", "0")
        command = [sys.executable, "-c", "from streams.cli.main import main; main()", *arguments]
        with subprocess.Popen(
            command,
            env=os.environ | self.settings | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            for _ in range(transactions):
                if not process.stderr.readline():
                    break
            process.kill()
            process.stderr.read()
            return process.wait(BOUND) != 0

    def each_was_replayed_once(self, count: int) -> None:
        replays = asyncio.run(self.read(self.orders))
        assert Counter(record.key for record in replays) == {
            f"o-{number}".encode(): 1 for number in range(count)
        }
        logged = self.run("log")
        assert len(logged) == count
        assert {(entry["who"] != "", entry["why"]) for entry in logged} == {(True, "they were fixed")}


@pytest.fixture
def shop(kafka: Stack) -> Shop:
    return Shop(kafka.bootstrap)


def test_letters_of_each_program_go_back_as_they_were(shop: Shop) -> None:
    asyncio.run(shop.fill(30, SPRING, STREAMS, CONNECT, OWN))
    listed = shop.run("list", "--limit", "100")
    assert Counter(letter["form"] for letter in listed) == {
        "spring": 8,
        "streams": 8,
        "connect": 7,
        "unknown": 7,
    }
    found = {group["form"]: group["count"] for group in shop.run("groups")}
    assert found == {"spring": 8, "streams": 8, "connect": 7, "unknown": 7}
    shop.run("replay", "--dry-run")
    assert asyncio.run(shop.read(shop.orders)) == []

    (done,) = shop.run("replay", "--yes", "--where", "form=spring", "--most", "5")
    assert (done["replayed"], done["before"]) == (5, 0)
    (done,) = shop.run("replay", "--yes", "--rate", "1000")
    assert (done["replayed"], done["before"], done["homeless"]) == (18, 5, 7)
    shop.run("replay", "--yes", expect=3)

    replays = asyncio.run(shop.read(shop.orders))
    assert {record.partition for record in replays} == {3}
    assert len({record.key for record in replays}) == len(replays) == 23
    for record in replays:
        *own, (name, place) = record.headers
        assert [*own] == OWN
        assert (name, place.decode().rpartition("/")[0].rpartition("/")[0]) == ("redriven-from", shop.letters)
        assert record.value == b"value " + (record.key or b"").removeprefix(b"o-")
    assert all(letter["replayed"] for letter in shop.run("list", "--where", "form=connect"))


def test_headers_that_replays_lack_are_named(shop: Shop) -> None:
    old = [("ce_id", b"1"), ("ce_expirytime", b"2001-09-09T01:46:41Z"), ("x-trace", b"t")]
    asyncio.run(shop.fill(3, [*SPRING, *COPIED, *old]))
    left_out = sorted(["ce_expirytime", "x-trace", *(name for name, _ in COPIED)])
    given = ("--drop-header", "x-*")
    dry = steadfaust(*shop.command("replay", "--dry-run", *given), **shop.settings)
    assert "headers left out of replays: " + ", ".join(f"{each} (3)" for each in left_out) in dry.stderr
    assert "warning: 3 have a ce_id" in dry.stderr
    (done,) = shop.run("replay", "--yes", *given)
    assert (done["dropped_headers"], done["with_id"]) == (dict.fromkeys(left_out, 3), 3)
    for record in asyncio.run(shop.read(shop.orders)):
        assert [*record.headers[:-1]] == [*OWN, ("ce_id", b"1")]


def test_letters_without_an_origin_go_where_they_are_sent(shop: Shop) -> None:
    asyncio.run(shop.fill(4, OWN))
    ran = steadfaust(*shop.command("replay", "--yes", "--to", shop.letters), **shop.settings)
    assert ran.returncode == 1
    assert "is itself the topic of dead letters" in ran.stderr
    ran = steadfaust(*shop.command("replay", "--yes", "--to", "no-such-topic"), **shop.settings)
    assert ran.returncode == 1
    assert "the cluster has no topic no-such-topic" in ran.stderr
    (done,) = shop.run("replay", "--yes", "--to", shop.orders)
    assert done["replayed"] == 4
    shop.each_was_replayed_once(4)


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        (4_000, 4),
        pytest.param(
            100_000,
            20,
            marks=[pytest.mark.verify("minutes; 4,000 letters cover it"), pytest.mark.timeout(1800)],
        ),
    ],
)
def test_each_letter_is_replayed_once_by_killed_commands(shop: Shop, count: int, kills: int) -> None:
    asyncio.run(shop.fill(count, SPRING))
    deep = max(1, count // 25_000)  # transactions
    assert sum(shop.kill_after(number % 3 * deep) for number in range(kills)) >= kills - 1
    (done,) = shop.run("replay", "--yes", "--rate", "0")
    assert done["replayed"] + done["before"] == count
    assert done["before"] > 0
    shop.each_was_replayed_once(count)
