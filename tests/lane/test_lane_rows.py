"""Handlers that ask for rows of their key, and turns that hold the worker's loop."""

import asyncio
from typing import Any, NamedTuple

import pytest
from lane_checker import check_store, latest
from lane_scenes import post as sent
from lane_scenes import stopped
from lane_worlds import FakeWorld, World
from structlog.testing import capture_logs

from streams.engine.way import attempt, intake, turns
from streams.model.choreography import choreography, on
from streams.model.codecs import decode_row, json_without_schema
from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.outcome import Outcome, outcome
from streams.model.row_keys import split_row_key
from streams.model.table import Rows, Table
from tests.keyed import Keyed


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

    class Named(Keyed, frozen=True, kw_only=True):
        TOPIC = f"{name}.named.v1"
        names: tuple[str, ...]

    def count(message: Any, lines: Rows[Line]) -> Outcome:
        changed: dict[str, Line | None] = {}
        for one in message.names:
            read.append(one.lstrip("-"))
            had = lines(one.lstrip("-"))
            changed[one.lstrip("-")] = None if one[:1] == "-" else Line(times=(had.times if had else 0) + 1)
        return outcome(lines=changed)

    count.__annotations__["message"] = Named
    return Work(choreography(on(Named, service.handler(lines=LINES.any)(count))), Named, read, {})


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
    named = [("a", "x", "y", ""), ("b", "x"), ("a", "y", "-x", "z")]
    messages = [work.message(k=key, names=tuple(names)) for key, *names in named]
    await world.post(*(sent(world, message, number) for number, message in enumerate(messages)))
    await stopped(world, lane, work.message.TOPIC)
    assert work.read.count("x") == 3
    assert await rows(world) == {("a", ""): 1, ("a", "y"): 2, ("a", "z"): 1, ("b", "x"): 1}
    await check_store(world)


class Timekeeper:
    """The clock by which turns are measured: time passes only while a handler is busy."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> Timekeeper:
    made = Timekeeper()
    for module in (attempt, intake, turns):
        monkeypatch.setattr(module, "perf_counter", made)
    return made


def holding(name: str, turn: Timekeeper, kind: str, seconds: float) -> Work:
    """A handler that holds the loop: a `sync` one; an `async` one that lets go of it before and after; or a
    sync one `beside` an async one that does not.
    """
    service = Service("slow")

    class Heavy(Keyed, frozen=True, kw_only=True):
        TOPIC = f"{name}.heavy.v1"

    def at_once(message: Any) -> Outcome:
        turn.now += seconds
        return outcome()

    async def waiting(message: Any) -> Outcome:
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            await fails()
        turn.now += seconds
        await asyncio.sleep(0)
        return outcome()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def quick(message: Any) -> Outcome:
        await asyncio.sleep(0)
        return outcome()

    functions: list[Any] = {"sync": [at_once], "async": [waiting], "beside": [quick, at_once]}[kind]
    for function in functions:
        function.__annotations__["message"] = Heavy
    return Work(choreography(on(Heavy, *map(service.handler(), functions))), Heavy, [], {})


async def handle(world: World, work: Work, keys: int) -> list[Any]:
    """What the log says of turns while messages of so many keys are handled."""
    await world.start(work)
    await world.post(*(sent(world, work.message(k=f"k{n}")) for n in range(keys)))
    with capture_logs() as logs:
        lane = await world.open()
        await stopped(world, lane, work.message.TOPIC)
    told = [entry for entry in logs if entry["event"] == "handler_held_loop"]
    assert lane.lane.counters.held_loop == (keys if told else 0)
    return told


@pytest.mark.promise("slow-handlers", "sync, async, and one beside the other")
@pytest.mark.parametrize(
    ("kind", "handler"), [("sync", "slow.at_once"), ("async", "slow.waiting"), ("beside", "slow.at_once")]
)
async def test_a_handler_that_holds_the_loop_is_told_of_once(
    fake: FakeWorld, turn: Timekeeper, kind: str, handler: str
) -> None:
    (told,) = await handle(fake, holding(fake.name, turn, kind, 1.2 * turns.HELD), 5)
    assert (told["handler"], told["seconds"], told["key_bytes"]) == (handler, 1.2 * turns.HELD, 2)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_handler_that_is_quick_is_not_told_of(fake: FakeWorld, turn: Timekeeper, kind: str) -> None:
    assert await handle(fake, holding(fake.name, turn, kind, 0.8 * turns.HELD), 5) == []


@pytest.mark.promise("slow-handlers")
async def test_slow_messages_are_handled_a_few_at_a_time(fake: FakeWorld, turn: Timekeeper) -> None:
    """All that had been fetched was handled in one go: hundreds of messages of 20 ms stopped a worker."""
    keys, seconds = 100, 0.01
    longest, before = 0.0, turn.now

    async def watch() -> None:
        nonlocal longest, before
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
        while True:
            longest, before = max(longest, turn.now - before), turn.now
            await asyncio.sleep(0 if ready else 0.01)  # one that never waits would stop simulated time

    fake.spawn(watch())
    await handle(fake, holding(fake.name, turn, "sync", seconds), keys)
    assert seconds <= longest < keys * seconds / 2
