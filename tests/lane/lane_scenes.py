"""How tests of a lane begin, wait and end, in the few lines that most of them share."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest
from lane_checker import check_store, latest
from lane_desk import letter_ids, operated, operation
from lane_failing import Failing, finish, letters_of, nothing_waits, settled, started
from lane_workloads import Ask, Workload, asking, counting
from lane_worlds import Post, Running, World

from streams.errors import TransientError
from streams.model.application import Application
from streams.model.envelope import new_headers
from streams.model.message import Message
from streams.model.operations import LetterCommand
from streams.model.row_keys import split_row_key
from streams.model.table import Table
from streams.ports import Stores

#: The steps of a commit at which a lane can be killed.
POINTS = ("staged", "begun", "sent", "offsets_sent", "committed", "applied")
#: The same, of which `make test` tries one on Kafka.
LANDING_AT_SENT = [pytest.param(at, marks=pytest.mark.landing) if at == "sent" else at for at in POINTS]


class Outage:
    """While it is down, every attempt fails."""

    def __init__(self) -> None:
        self.down = True

    def __call__(self, event: Any = None) -> None:
        if self.down:
            raise ConnectionError("nobody there")


async def counter(world: World, *, tallied: bool = False, settled: bool = False, **options: Any) -> Workload:
    """Started: an application that counts events."""
    work = counting(world.name, tallied=tallied, settled=settled)
    await world.start(work, **options)
    return work


async def retrying_counter(
    world: World,
    *,
    tallied: bool = False,
    settled: bool = False,
    order_by: Callable[[Any], str] | None = None,
    **options: Any,
) -> Workload:
    """The same, which tries again soon, and of which each late try counts."""
    work = counting(world.name, tallied=tallied, settled=settled, order_by=order_by)
    await started(world, work, **options)
    return work


async def failing_counter(
    world: World, times: dict[tuple[str, int], int], *, error: Exception | None = None, **options: Any
) -> tuple[Workload, Failing]:
    """The same, which fails for some events, by key and number, so many times."""
    work = await retrying_counter(world, **options)
    work.hooks.before = failing = Failing(world, times, error or TransientError("busy"))
    return work, failing


async def retried_asker(
    world: World, ask: Ask, *, order_by: Callable[[Any], str] | None = None, **options: Any
) -> Workload:
    work = asking(world.name, ask, order_by=order_by)
    await started(world, work, **options)
    return work


def some(world: World, work: Workload, numbers: range, keys: str = "abcd") -> list[Post]:
    """Events of these numbers for each of the keys."""
    return [world.event(work, key, i) for i in numbers for key in keys]


async def opened(world: World, *posts: Post, **options: Any) -> Running:
    await world.post(*posts)
    return await world.open(**options)


async def stopped(world: World, lane: Running, *topics: str) -> None:
    """Stop a lane when it is past every record of these topics."""
    await world.settled(*topics)
    await lane.stop()


async def stopped_empty(world: World, work: Workload, lane: Running) -> None:
    """Stop a lane when all that has come was tried, or waits, and is committed."""
    await settled(world, work, lane)
    await lane.stop()


async def finished(
    world: World, work: Workload, lane: Running, events: Sequence[Post], when: Callable[[], object]
) -> None:
    """Wait until something is so, and stop the lane: these events are handled, nothing waits."""
    await world.until(when)
    await finish(world, work, lane, events)


async def cleared(
    world: World, lane: Running, when: Callable[[], object], *, stores: Stores | None = None
) -> None:
    """Stop a lane when something is so and it holds nothing: nothing waits, its store is sound."""
    await world.until(lambda: when() and not lane.lane.backlog)
    await lane.stop()
    await check_store(world, stores=stores)
    await nothing_waits(world)


async def handled(world: World, work: Any, events: Iterable[Post] = (), **options: Any) -> Running:
    lane = await opened(world, *events, **options)
    await stopped(world, lane, work.source)
    return lane


async def operated_on(world: World, lane: Running, kind: LetterCommand) -> None:
    (letter,) = await letter_ids(world)
    await operated(world, lane, operation(world, kind, letter))


async def died_of(world: World, work: Workload) -> list[str]:
    return [headers["dlq-error-type"].decode() for headers in await letters_of(world, work)]


async def until_so(world: World, holds: Callable[[], Awaitable[bool]], *, every: float = 0.05) -> None:
    """Wait for what the topics say, looking every so many seconds of the world's time."""

    async def watch() -> None:
        while not await holds():
            await world.clock.sleep(every)

    watching = world.spawn(watch())
    await world.until(watching.done)
    watching.result()


def post(world: World, message: Message, number: int = 1, app: Application | None = None) -> Post:
    """A message from outside, as a client of this version of the application sends it."""
    codec = (app or world.app).message_codecs[message.TOPIC]
    name = f"{message.key}-{number}"
    headers = new_headers(message.TOPIC, message.key, source="outside", time=1e9, message_id=name)
    headers.append(("schema-fingerprint", codec.fingerprint))
    return world.raw(message.TOPIC, message.key, codec.encode(message), headers)


async def rows_of(world: World, table: Table[Any]) -> dict[str, Any]:
    """The rows of a table by key, as its changelog has them; its codec is JSON."""
    return {
        split_row_key(key)[0].decode(): msgspec.json.decode(value[8:], type=table.row)
        for (_, key), value in (await latest(world, table.name)).items()
    }
