"""An operator pauses, drains and resumes handlers at the command line, through a worker's pages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lane_commands import CommandLine, Pages, command_line
from lane_failing import Failing, finish, settled, started
from lane_pausing import COUNT, states, told
from lane_workloads import MADE_NEWER, avro_codecs, counting
from lane_worlds import FakeWorld
from test_lane_schemas import newer

from streams.cli import handler as commands
from streams.errors import TransientError
from streams.model.codecs import Schemas, fingerprint_of
from streams.model.operations import PauseState
from streams.model.policy.retry import RetryPolicy

UNKNOWN, UNFINISHED = 2, 4


@pytest.fixture(autouse=True)
def commands_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PAUSE", 0.01)


@asynccontextmanager
async def an_operator(fake: FakeWorld, **lane_options: Any) -> AsyncIterator[tuple[CommandLine, Any, Any]]:
    await started(fake, work := counting(fake.name, tallied=True), **lane_options)
    lane = await fake.open()
    async with command_line(fake, Pages(fake, lane.lane), "handler") as operator:
        yield operator, lane, work


async def listed(operator: CommandLine) -> list[str]:
    return [line for line in (await operator.run("list")).stdout.splitlines() if line[:5] == "bench"]


async def line(operator: CommandLine, *arguments: str) -> Any:
    return (await operator.lines(*arguments))[-1]


async def test_a_handler_is_paused_shown_and_resumed(fake: FakeWorld) -> None:
    async with an_operator(fake) as (operator, lane, work):
        paused = await operator.run("pause", COUNT, "--why", "the bank is down", "--who", "ann")
        assert paused.exit_code == 0, paused.output
        assert f"pause of {COUNT} is in effect in 2 of 2 partitions: paused" in paused.stdout
        assert "64 MiB of messages can wait" in paused.stdout
        assert set((await states(fake)).values()) == {PauseState.PAUSED}
        events = [fake.event(work, key, i) for i in range(2) for key in "abc"]
        await fake.post(*events)
        await settled(fake, work, lane)

        handlers = await listed(operator)
        assert [line.split()[:2] for line in handlers] == [[COUNT, "paused"], ["bench.tally", "running"]]
        assert "by ann: the bank is down" in handlers[0]
        shown = await line(operator, "status", COUNT)
        assert (shown["state"], shown["who"], shown["why"]) == ("paused", "ann", "the bank is down")
        assert (shown["waiting"], shown["keys"], shown["attempts"]) == ({"paused": 6}, 3, 0)
        assert shown["breakers"] == {"closed": 1}
        assert "waiting messages    6 paused, of 3 keys" in (await operator.run("status", COUNT)).stdout

        resumed = await line(operator, "resume", COUNT, "--why", "it is back")
        assert (resumed["holds_in"], resumed["of"], resumed["state"]) == (2, 2, "running")
        await fake.until(lambda: len(work.hooks.calls) == 6)
        await finish(fake, work, lane, events)
        assert [what for what, _, _ in await told(fake)] == ["pause", "pause", "resume", "resume"]


async def test_a_drain_outlives_the_command_that_waits_for_it(fake: FakeWorld) -> None:
    policy = RetryPolicy(immediate=0, delays=(10_000.0,))
    async with an_operator(fake, retry=policy) as (operator, lane, work):
        work.hooks.before = Failing(fake, {("a", 0): 1}, TransientError("busy"))
        event = fake.event(work, "a", 0)
        await fake.post(event)
        await fake.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
        early = await operator.run("drain", COUNT, "--why", "a deploy", "--timeout", "0.3")
        assert early.exit_code == UNFINISHED
        assert "draining in 1 of 2" in early.stdout
        assert "messages of 1 keys are waiting" in early.stderr
        fake.clock.set(fake.clock.now() + 10_000)
        done = await operator.run("drain", COUNT, "--why", "a deploy")
        assert (done.exit_code, "drained" in done.stdout) == (0, True)
        assert len(work.hooks.calls) == 2
        await finish(fake, work, lane, [event])


async def test_a_lane_that_does_not_answer_is_named(fake: FakeWorld) -> None:
    async with an_operator(fake) as (operator, lane, _):
        asked = await operator.run("resume", COUNT, "--why", "so", "--no-wait")
        assert (asked.exit_code, "of 2 partitions" in asked.stdout) == (0, True), "where it holds already"
        await fake.settled(fake.app.layout.operations)
        await lane.stop()
        result = await operator.run("pause", COUNT, "--why", "so", "--timeout", "0.1")
        assert result.exit_code == UNFINISHED
        assert "in effect in 0 of 2 partitions: unknown" in result.stdout
        assert "lane 0 has not answered: lane 0 is closed" in result.stderr
        lane = await fake.open()
        await fake.until(lambda: len(lane.lane.gates[COUNT].shut) == 2)


async def test_an_unknown_handler_is_an_error_that_names_others(fake: FakeWorld) -> None:
    async with an_operator(fake) as (operator, lane, _):
        for words in (("pause", "bench.cuont", "--why", "so"), ("status", "bench.cuont")):
            result = await operator.run(*words)
            assert result.exit_code == UNKNOWN
            assert "bench.cuont" in result.stderr
            assert COUNT in result.stderr
        assert (await operator.run("pause", COUNT, "--why", " ")).exit_code == 1
        assert (await operator.run("pause", COUNT)).exit_code == UNKNOWN, "a reason is needed"
        assert lane.lane.counters.operations == 0


@pytest.mark.promise("awaited-schemas")
async def test_an_unannounced_schema_is_shown_until_it_is_announced(fake: FakeWorld) -> None:
    schemas, unknown = Schemas(), fingerprint_of(MADE_NEWER)
    async with an_operator(fake, codecs=avro_codecs(schemas)) as (operator, lane, work):
        await fake.post(newer(fake.event(work, "a", 0), "a", 0))
        await settled(fake, work, lane)
        handlers = await listed(operator)
        assert all(f"unknown schema {unknown}" in line for line in handlers)
        assert len(handlers) == 2
        shown = (await operator.run("status", COUNT)).stdout
        assert "waiting messages    1 schema, of 1 keys" in shown
        assert f"1 key waits for schema {unknown}, for {COUNT}, since 20" in shown
        (told,) = (await line(operator, "status", COUNT))["schemas"]
        assert (told["schema"], told["keys"]) == (unknown, 1)
        schemas.add(MADE_NEWER)
        await fake.until(lambda: work.hooks.calls == [("a", 0)] and not lane.lane.backlog)
        assert (await line(operator, "status", COUNT))["schemas"] == []
        await lane.stop()
