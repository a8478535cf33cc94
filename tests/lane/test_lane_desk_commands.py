"""An operator at the command line, through a worker's pages, to the lane and back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lane_checker import check
from lane_commands import CommandLine, Pages, command_line
from lane_desk import letter_ids, letters, operations_log
from lane_pausing import asked as operate_handler
from lane_workloads import counting
from lane_worlds import FakeWorld
from test_lane_desk import quiet
from test_lane_desk_gone import later, with_replays
from typer.testing import CliRunner

from streams.cli.main import app
from streams.engine.waiting.dead_letters.row import LetterState
from streams.errors import PermanentError
from streams.model.operations import HandlerCommand

pytestmark = pytest.mark.promise("dead-letter-desk")

NOTHING, REFUSED, UNFINISHED = 3, 1, 4


@asynccontextmanager
async def a_desk(fake: FakeWorld, **lane_options: Any) -> AsyncIterator[tuple[CommandLine, Any, Any]]:
    """Twelve events of three keys, of which a handler has given up those with an odd number."""
    await fake.start(work := counting(fake.name), **lane_options)

    def before(event: Any) -> None:
        if event.i % 2:
            raise PermanentError(f"{event.k} is odd")

    work.hooks.before = before
    await fake.post(*[fake.event(work, key, i) for i in range(4) for key in "abc"])
    lane = await fake.open()
    await quiet(fake, lane, dead_letters=6)
    async with command_line(fake, Pages(fake, lane.lane), "dlq") as desk:
        yield desk, lane, work


async def test_letters_are_listed_chosen_and_shown(fake: FakeWorld) -> None:
    async with a_desk(fake) as (desk, _, _):
        found = await desk.lines("list")
        assert {(letter["key"], letter["state"]) for letter in found} == {(k, "dead") for k in "abc"}
        chosen = await desk.lines("list", "--where", "key=b", "-w", "text=ODD", "--limit", "1")
        assert [letter["key"] for letter in chosen] == ["b"]
        assert chosen[0]["id"] in (await desk.run("list", "-w", "key=b")).stdout
        assert (await desk.run("list", "-w", "key=z")).exit_code == NOTHING
        shown = (await desk.run("show", chosen[0]["id"])).stdout
        assert "PermanentError" in shown
        assert "b is odd" in shown
        assert '"k":"b"' in shown
        groups = await desk.lines("groups")
        assert [group["count"] for group in groups] == [6]


@pytest.mark.slow("hundreds of letters")
async def test_all_that_match_are_replayed_after_a_look(fake: FakeWorld) -> None:
    async with a_desk(fake) as (desk, lane, work):
        work.hooks.before = lambda _: None
        words = ("replay", "-w", "key=a", "--why", "mended", "--who", "ann")
        no = await desk.run(*words, typed="n\n")
        assert no.exit_code == REFUSED
        assert "replay 2 dead letters?" in no.output
        dry = (await desk.lines(*words, "--dry-run"))[0]
        assert (dry["matched"], dry["asked"]) == (2, 0)
        assert len(await letters(fake)) == 6
        yes = await desk.run(*words, typed="y\n")
        assert yes.exit_code == 0, yes.output
        await quiet(fake, lane, replayed=2)
        assert {letter.key for letter in await letters(fake)} == {b"b", b"c"}
        assert (await desk.run("replay", "-w", "service=bench", "--why", "all", "--yes")).exit_code == 0
        await quiet(fake, lane, replayed=6)
        assert {done["who"] for done in (await operations_log(fake))[:4]} == {"ann"}
        await lane.stop()
        await check(fake, work, [fake.event(work, key, i) for i in range(4) for key in "abc"])


async def test_letters_are_discarded_restored_and_edited_by_id(fake: FakeWorld, tmp_path: Any) -> None:
    async with a_desk(fake, edit_dead_letters=True) as (desk, lane, _):
        ident = (await letter_ids(fake))[0]
        for n, (word, why, state) in enumerate(
            [("discard", "a test order", LetterState.DISCARDED), ("restore", "it was not", LetterState.DEAD)],
            1,
        ):
            asked = await desk.run(word, ident, ident, "--why", why, "--timeout", "1")
            assert asked.exit_code == 0, asked.output
            await quiet(fake, lane, operations=n)  # a letter named twice is asked about once
            assert (await letters(fake))[0].state is state
        shown = await desk.run("show", ident)
        assert "discard (a test order): discarded" in shown.stdout
        even = tmp_path / "even.json"
        even.write_text(json.dumps({"k": (await letters(fake))[0].key.decode(), "i": 8}))  # type: ignore[union-attr]
        edited = await desk.run("edit", ident, "--message", str(even), "--why", "the odd one was a typo")
        assert edited.exit_code == 0, edited.output
        await quiet(fake, lane, replayed=1)
        assert (await desk.run("show", ident)).exit_code == REFUSED


@pytest.mark.promise("discarded-replays")
async def test_replays_for_a_handler_that_is_gone_are_discarded(fake: FakeWorld) -> None:
    await with_replays(fake, 0, 10)
    gone, stays = [letter.topic for letter in await letters(fake)]
    app = later(fake, 2)[1]
    lane = await fake.open(app=app)
    pages = Pages(fake, lane.lane)
    pages.application = app
    async with command_line(fake, pages, "dlq") as desk:
        found = {each["topic"]: (each["state"], each["gone"]) for each in await desk.lines("list")}
        assert found == {gone: ("replaying", True), stays: ("replaying", False)}
        assert "bench.count (gone)" in (await desk.run("list", "-w", f"topic={gone}")).stdout
        words = ("discard", "-w", "state=replaying", "--why", "nobody counts them any more")
        asked = await desk.run(*words, "--yes")
        assert "1 requested, 1 of 2 matched" in asked.stdout, asked.output
        await quiet(fake, lane, operations=1)
    states = {letter.topic: letter.state for letter in await letters(fake)}
    assert states == {gone: LetterState.DISCARDED, stays: LetterState.REPLAYING}


async def test_no_worker_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("STEADFAUST_VAR", str(tmp_path))
    result = await asyncio.to_thread(CliRunner().invoke, app, ["dlq", "list"])
    assert result.exit_code == 1
    assert "no worker" in str(result.exception)


async def test_a_command_about_a_letter_says_the_lanes_answer(fake: FakeWorld) -> None:
    """Also where the lane refuses, and where the letter is gone: neither is done."""
    async with a_desk(fake) as (desk, lane, work):
        work.hooks.before = lambda _: None
        ident, other = (await letter_ids(fake))[:2]

        why = ("--why", "as told")
        refused = await desk.run("restore", ident, *why)
        found = (refused.exit_code, refused.stdout.splitlines()[-1])
        assert found == (REFUSED, f"restore of {ident}: refused: it is not discarded")
        done = await desk.run("replay", ident, *why)
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"replay of {ident}: handled")
        await quiet(fake, lane, replayed=1)
        gone = await desk.run("replay", ident, *why)
        told = (gone.exit_code, gone.stdout.splitlines()[-1])
        assert told == (REFUSED, f"replay of {ident}: refused: there is no such dead letter (any more)")
        both = await desk.run("discard", ident, other, *why)
        assert both.exit_code == REFUSED
        assert f"discard of {other}: discarded" in both.stdout


async def test_a_replay_that_fails_again_or_waits_says_so(fake: FakeWorld) -> None:
    async with a_desk(fake) as (desk, lane, work):
        ident, other = (await letter_ids(fake))[:2]

        words = ("replay", "--why", "mended")
        failed = await desk.run(*words, ident)
        assert failed.exit_code == REFUSED
        assert f"replay of {ident}: failed again: PermanentError: a is odd" in failed.stdout
        many = await desk.run(*words, "-w", "key=b", "--yes")
        assert (many.exit_code, "failed again 2" in many.stdout) == (REFUSED, True)
        await operate_handler(fake, HandlerCommand.PAUSE)
        waits = await desk.run(*words, other, "--timeout", "0.1")
        assert waits.exit_code == UNFINISHED
        assert f"replay of {other}: waiting: paused by ann" in waits.stdout
        work.hooks.before = lambda _: None
        await operate_handler(fake, HandlerCommand.RESUME)
        await quiet(fake, lane, replayed=1)
        assert "replaying" not in (await desk.run("list")).stdout


async def test_what_cannot_be_done_or_answered_is_an_error(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def operate(_: Pages, __: Any) -> None:
        """Kafka has it, and the lane has not read it yet."""

    async with a_desk(fake) as (desk, lane, _):
        for words in (
            ("replay", "-w", "service=bench", "--yes"),
            ("discard", "x", "--why", "so"),
            ("replay", "--why", "all of them"),
            ("replay", "-w", "colour=red", "--why", "so"),
            ("edit", "AAAAAWFi", "--why", "so"),
        ):
            assert (await desk.run(*words)).exit_code in (1, 2), words
        assert lane.lane.counters.operations == 0
        monkeypatch.setattr(Pages, "operate", operate)
        ident = (await letter_ids(fake))[0]
        late = await desk.run("replay", ident, "--why", "as told", "--timeout", "0.1", "--job", "j1")
        assert late.exit_code == UNFINISHED
        assert "the lanes of 1 of 1 dead letters have not answered yet" in late.stderr
        assert "to check again, add --job j1" in late.stderr
