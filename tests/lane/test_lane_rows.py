"""Handlers that ask for rows of their key, and turns that hold the worker's loop."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any, NamedTuple

import pytest
from lane_checker import check_store, latest
from lane_scenes import stopped
from lane_worlds import FakeWorld, Post, World
from structlog.testing import capture_logs

from streams.lane import turns
from streams.model.choreography import choreography, on
from streams.model.codecs import decode_row, json_without_schema
from streams.model.envelope import new_headers
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.row_keys import split_row_key
from streams.model.table import Rows, Table


class Line(Row, frozen=True, kw_only=True):
    """How often something was named."""

    times: int


class Work(NamedTuple):
    """A choreography with what it needs, its message and the subkeys that were read."""

    wiring: Any
    message: Any
    read: list[str]
    resources: dict[str, Any]


LINES = Table("lines", Line)


def naming(name: str) -> Work:
    """A handler that counts how often each thing was named under its key; -name drops it."""
    service = Service("names")
    read: list[str] = []

    class Named(Message, frozen=True, kw_only=True):
        TOPIC = f"{name}.named.v1"
        k: str
        names: tuple[str, ...]

        @property
        def key(self) -> str:
            return self.k

    def count(message: Any, lines: Rows[Line]) -> Outcome:
        changed: dict[str, Line | None] = {}
        for one in message.names:
            read.append(one.lstrip("-"))
            had = lines(one.lstrip("-"))
            changed[one.lstrip("-")] = None if one[:1] == "-" else Line(times=(had.times if had else 0) + 1)
        return outcome(lines=changed)

    count.__annotations__["message"] = Named
    return Work(choreography(on(Named, service.handler(lines=LINES.any)(count))), Named, read, {})


def post(world: World, work: Work, key: str, *names: str) -> Post:
    message = work.message(k=key, names=names)
    body = world.app.message_codecs[message.TOPIC].encode(message)
    headers = new_headers(
        message.TOPIC, key, source="outside", time=1e9, message_id=f"{key}-{'-'.join(names)}"
    )
    return world.raw(message.TOPIC, key, body, headers)


async def rows(world: World) -> dict[tuple[str, str], int]:
    codec = json_without_schema(Line, "")
    found = {}
    for (_, key), data in (await latest(world, "lines")).items():
        of, sub = split_row_key(key)
        found[of.decode(), sub.decode()] = decode_row(codec, data).times
    return found


async def test_a_handler_reads_and_writes_rows_of_its_key(world: World) -> None:
    work = naming(world.name)
    await world.start(work)
    lane = await world.open()
    await world.post(post(world, work, "a", "x", "y", ""), post(world, work, "b", "x"))
    await world.post(post(world, work, "a", "y", "-x", "z"))
    await stopped(world, lane, work.message.TOPIC)
    assert work.read.count("x") == 3
    assert await rows(world) == {("a", ""): 1, ("a", "y"): 2, ("a", "z"): 1, ("b", "x"): 1}
    await check_store(world)


class Slow(NamedTuple):
    """A choreography of which every message keeps the loop busy for a while."""

    wiring: Any
    message: Any
    resources: dict[str, Any]


def busy(seconds: float) -> None:
    """Hold the loop."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        pass


def holding(name: str, seconds: float, *, waits: bool = False, beside: bool = False) -> Slow:
    """A handler that holds the loop, and when it `waits` lets go of it before and after; or `beside` an async
    one that does not.
    """
    service = Service("slow")

    class Heavy(Message, frozen=True, kw_only=True):
        TOPIC = f"{name}.heavy.v1"
        k: str

        @property
        def key(self) -> str:
            return self.k

    def at_once(message: Any) -> Outcome:
        del message
        busy(seconds)
        return outcome()

    async def waiting(message: Any) -> Outcome:
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            await fails()
        busy(seconds)
        await asyncio.sleep(0)
        del message
        return outcome()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def quick(message: Any) -> Outcome:
        del message
        await asyncio.sleep(0)
        return outcome()

    functions: list[Any] = [quick, at_once] if beside else [waiting if waits else at_once]
    for function in functions:
        function.__annotations__["message"] = Heavy
    return Slow(choreography(on(Heavy, *map(service.handler(), functions))), Heavy, {})


async def handle(world: World, work: Slow, keys: int) -> list[Any]:
    """What the log says of turns while messages of so many keys are handled."""
    await world.start(work)
    codec = world.app.message_codecs[work.message.TOPIC]
    posts = []
    for n in range(keys):
        headers = new_headers(work.message.TOPIC, f"k{n}", source="outside", time=1e9, message_id=f"m{n}")
        posts.append(world.raw(work.message.TOPIC, f"k{n}", codec.encode(work.message(k=f"k{n}")), headers))
    await world.post(*posts)
    with capture_logs() as logs:
        lane = await world.open()
        await world.settled(work.message.TOPIC)
        counted = lane.lane.counters.held_loop
        await lane.stop()
    told = [entry for entry in logs if entry["event"] == "handler_held_loop"]
    assert (counted > 0) == bool(told)
    assert counted in (0, keys)
    return told


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
async def test_a_handler_that_holds_the_loop_is_told_of_seldom(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    monkeypatch.setattr(turns, "HELD", 0.02)
    (told,) = await handle(fake, holding(fake.name, 0.03, waits=waits), 5)
    assert told["handler"] == ("slow.waiting" if waits else "slow.at_once")
    assert told["seconds"] >= 0.03
    assert told["key_bytes"] == 2


async def test_a_sync_handler_beside_an_async_one_is_told_of(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "HELD", 0.02)
    (told,) = await handle(fake, holding(fake.name, 0.03, beside=True), 5)
    assert told["handler"] == "slow.at_once"


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
async def test_a_handler_that_is_quick_is_not_told_of(fake: FakeWorld, *, waits: bool) -> None:
    assert await handle(fake, holding(fake.name, 0.0, waits=waits), 5) == []


async def test_slow_messages_are_handled_a_few_at_a_time(fake: FakeWorld) -> None:
    """All that had been fetched was handled in one go: hundreds of messages of 20 ms stopped a worker."""
    keys, seconds = 100, 0.01
    longest, before, done = 0.0, perf_counter(), asyncio.Event()

    async def watch() -> None:
        nonlocal longest, before
        while not done.is_set():
            now = perf_counter()
            longest, before = max(longest, now - before), now
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    try:
        await handle(fake, holding(fake.name, seconds, waits=False), keys)
    finally:
        done.set()
        await watcher
    assert longest < keys * seconds / 2
