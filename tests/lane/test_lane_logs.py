"""What the log says while a lane handles messages: which message it was, and what became of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from lane_checker import dead_letters
from lane_failing import all_counted, finish
from lane_scenes import failing_counter, opened, retrying_asker, retrying_counter, some, stopped
from lane_worlds import FakeWorld, World
from structlog.testing import LogCapture

from streams.errors import PermanentError
from streams.logs import HANDLED, add_ids

log = structlog.get_logger(__name__)


class Captured:
    """Lines as they are written, with the ids that are added to them."""

    def __enter__(self) -> list[Any]:
        capture = LogCapture()
        self._processors = structlog.get_config()["processors"]
        processors = structlog.get_config()["processors"]
        self._before = list(processors)
        processors[:] = [add_ids, capture]
        return capture.entries

    def __exit__(self, *exception: object) -> None:
        self._processors[:] = self._before


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with Captured() as lines:
        yield lines


def of(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


async def test_only_what_a_handler_logs_names_its_message(world: World, lines: list[Any]) -> None:
    work = await retrying_counter(world)
    work.hooks.before = lambda event: log.info("seen", i=event.i)
    events = some(world, work, range(2), "ab")
    lane = await opened(world, *events)
    await all_counted(world, lane, len(events))
    await finish(world, work, lane, events)
    seen = sorted((line["key"], line["i"], line["message_id"]) for line in of(lines, "seen"))
    assert seen == [("a", 0, "a-0"), ("a", 1, "a-1"), ("b", 0, "b-0"), ("b", 1, "b-1")]
    assert {line["correlation_id"] for line in of(lines, "seen")} == {"a-0", "a-1", "b-0", "b-1"}
    assert "message_id" not in of(lines, "lane_opened")[0]
    assert HANDLED.get() is None


async def test_async_handlers_side_by_side_each_name_their_own_message(
    world: World, lines: list[Any]
) -> None:
    both, asked = asyncio.Event(), []

    async def ask(key: str, i: int) -> None:
        asked.append(key)
        if len(asked) == 2:
            both.set()
        await both.wait()
        log.info("seen", asked=key)

    work = await retrying_asker(world, ask)
    events = [world.event(work, key, 0) for key in "ab"]
    lane = await opened(world, *events)
    await all_counted(world, lane, len(events))
    await finish(world, work, lane, events)
    assert sorted((line["asked"], line["key"]) for line in of(lines, "seen")) == [("a", "a"), ("b", "b")]


async def test_a_failure_and_a_dead_letter_name_their_message(world: World, lines: list[Any]) -> None:
    work, _ = await failing_counter(world, {("a", 0): 9}, error=PermanentError("no such card"))
    lane = await opened(world, world.event(work, "a", 0))
    await world.until(lambda: of(lines, "dead_letter"))
    await stopped(world, lane, work.source)
    (failed,), (letter,) = of(lines, "handler_failed"), of(lines, "dead_letter")
    for line in (failed, letter):
        assert (line["message_id"], line["correlation_id"], line["key"]) == ("a-0", "a-0", "a")
        assert line["handler"] == "bench.count"
    assert letter["error"] == "PermanentError: no such card"
    assert letter["topic"] == work.source
    assert len(await dead_letters(world, work.source)) == 1


async def test_an_unreadable_record_is_logged_as_a_dead_letter(fake: FakeWorld, lines: list[Any]) -> None:
    work = await retrying_counter(fake)
    whole = fake.event(work, "a", 0)
    lane = await opened(fake, whole._replace(headers=[]))
    await fake.until(lambda: of(lines, "dead_letter"))
    await lane.stop()
    (letter,) = of(lines, "dead_letter")
    assert (letter["handler"], letter["key"], letter["partition"]) == ("", "a", whole.partition)
    assert letter["error"].startswith("MissingHeader")
    assert "message_id" not in letter
