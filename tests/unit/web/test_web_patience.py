"""After a kill the dead worker is the listed owner for a while: who asks waits, and is told what for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import Result
from typer.testing import CliRunner
from web_workers import Browser, FakeWorker

from streams.cli import workers as cli_workers
from streams.cli.main import app
from streams.web import jobs as jobs_module
from streams.web.owner import ASKED_BY
from streams.web.patience import PATIENCE, patiently
from streams.web.view import Problem

pytestmark = pytest.mark.slow("nine seconds of waiting for pages")

KEYS = [f"k{n}" for n in range(40)]
LONG = 30.0
ROWS = "/api/tables/parcels/rows"


@pytest.fixture
async def killed(unused_tcp_port: int):
    """A worker with lanes 0 and 1, for whom the owner of the others is one that was killed; what that left
    is on a third one, of which nobody has heard yet.
    """
    alive, heir = FakeWorker.with_lanes(0, 1, patience=LONG), FakeWorker.with_lanes(2, 3)
    async with Browser.of(alive) as one, Browser.of(heir) as other:
        alive.url, heir.url = (str(browser.make_url("")).rstrip("/") for browser in (one, other))
        dead = f"http://127.0.0.1:{unused_tcp_port}"
        alive.owns({0: alive.url, 1: alive.url, 2: dead, 3: dead})
        heir.owns({0: alive.url, 1: alive.url, 2: heir.url, 3: heir.url})
        for key in KEYS:
            home = alive if alive.lane(key) in alive.lanes else heir
            home.put(key, note=f"note of {key}")
            home.put_letter(key)
        yield alive, heir, one


def take_over(alive: FakeWorker, heir: FakeWorker) -> None:
    alive.owns({0: alive.url, 1: alive.url, 2: heir.url, 3: heir.url})


def elsewhere(worker: FakeWorker) -> str:
    return next(key for key in KEYS if worker.lane(key) not in worker.lanes)


@contextmanager
def noticed(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """An event that is set when a question has met an owner that does not answer."""
    met = asyncio.Event()
    loop = asyncio.get_running_loop()
    init = Problem.__init__

    def seen(self: Problem, status: int, error: str, detail: str) -> None:
        init(self, status, error, detail)
        if error == "owner_unreachable":
            loop.call_soon_threadsafe(met.set)

    monkeypatch.setattr(Problem, "__init__", seen)
    yield met


async def test_a_look_up_waits_until_the_dead_owners_lanes_are_another_workers(killed, monkeypatch) -> None:
    alive, heir, one = killed
    key = elsewhere(alive)
    with noticed(monkeypatch) as met:
        asking = asyncio.create_task(one.json(ROWS, params={"key": key}))
        await asyncio.wait_for(met.wait(), LONG)
        assert not asking.done()
        take_over(alive, heir)
        status, answer = await asking
    assert (status, answer["owner"]) == (200, heir.url)
    assert answer["rows"][0]["value"] == {"note": f"note of {key}"}


async def test_it_waits_for_a_lane_that_is_opening_too(killed, monkeypatch) -> None:
    alive, heir, one = killed
    key = elsewhere(alive)
    lane = heir.lane(key)
    opening = heir.lanes.pop(lane)
    take_over(alive, heir)
    asking = asyncio.create_task(one.json(ROWS, params={"key": key}))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.5)
    heir.lanes[lane] = opening
    status, _ = await asking
    assert status == 200


async def test_the_wait_is_bounded_and_says_what_it_was_for(killed) -> None:
    alive, _, one = killed
    alive.patience = 0.3
    status, problem = await one.json(ROWS, params={"key": elsewhere(alive)})
    assert (status, problem["error"]) == (502, "owner_unreachable")
    assert problem["detail"].endswith("(and it was so for 0.3 s)")


@pytest.mark.parametrize("headers", [{PATIENCE: "0"}, {ASKED_BY: "http://127.0.0.1:9"}])
async def test_who_waits_himself_is_told_at_once(killed, headers) -> None:
    alive, _, one = killed
    status, problem = await one.json(ROWS, params={"key": elsewhere(alive)}, headers=headers)
    assert status in (502, 503)
    assert "it was so for" not in problem["detail"]


async def test_patience_that_is_no_number_is_refused(killed) -> None:
    _, _, one = killed
    status, problem = await one.json(ROWS, params={"key": "k"}, headers={PATIENCE: "much"})
    assert (status, problem["error"]) == (400, "bad_patience")


async def test_what_does_not_pass_is_told_at_once() -> None:
    tries = []

    async def refuses() -> None:
        tries.append(1)
        raise Problem(404, "no_row", "there is none")

    with pytest.raises(Problem, match="there is none"):
        await patiently(refuses, LONG)
    assert len(tries) == 1


# -- operators ---------------------------------------------------------------------------------------------


async def command(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, words)


async def test_a_replay_of_many_waits_for_the_dead_owners_letters_and_goes_on(killed, monkeypatch) -> None:
    alive, heir, one = killed
    words = ["dlq", "replay", "-w", "handler=post.note", "--why", "mended", "--yes", "--job", "all"]
    with noticed(monkeypatch) as met:
        asking = asyncio.create_task(command(*words, "--worker", alive.url, "--rate", "1000"))
        await asyncio.wait_for(met.wait(), LONG)
        _, job = await one.json("/api/dead-letters/jobs/all")
        while not job["waits_for"]:
            await asyncio.sleep(0.01)
            _, job = await one.json("/api/dead-letters/jobs/all")
        assert job["state"] == "running"
        assert job["waits_for"].startswith(alive.assignment.owners[2])
        await asyncio.sleep(2 * cli_workers.PAUSE)  # the command looks at it, and tells
        take_over(alive, heir)
        result = await asking
    assert result.exit_code == 0, result.output
    assert "waits: http://127.0.0.1:" in result.stderr
    assert len(alive.asked) == len(KEYS)
    _, job = await one.json("/api/dead-letters/jobs/all")
    assert (job["state"], job["asked"], job["waits_for"]) == ("done", len(KEYS), "")


async def test_a_job_does_not_wait_for_ever_and_can_be_resumed(killed, monkeypatch) -> None:
    monkeypatch.setattr(jobs_module, "PATIENCE", 0.3)
    alive, heir, _ = killed
    words = ["dlq", "replay", "-w", "handler=post.note", "--why", "mended", "--yes", "--job", "all"]
    result = await command(*words, "--worker", alive.url)
    assert result.exit_code == 4
    assert "and it was so for 0.3 s" in result.stderr
    take_over(alive, heir)
    result = await command(*words, "--worker", alive.url)
    assert result.exit_code == 0, result.output


async def test_a_command_says_what_it_waits_for_and_goes_on(killed, monkeypatch) -> None:
    alive, heir, _ = killed
    ident = heir.put_letter(elsewhere(alive), 1)
    for words in (["dlq", "list"], ["dlq", "groups"], ["dlq", "show", ident]):
        alive.owns({2: "http://127.0.0.1:1", 3: "http://127.0.0.1:1"})
        with noticed(monkeypatch) as met:
            asking = asyncio.create_task(command(*words, "--worker", alive.url))
            await asyncio.wait_for(met.wait(), LONG)
            await asyncio.sleep(cli_workers.PAUSE)
            assert not asking.done()
            take_over(alive, heir)
            result = await asking
        assert result.exit_code == 0, result.output
        assert result.stderr.count("waiting: http://127.0.0.1:1 owns the key and cannot be asked") == 1


async def test_a_list_of_handlers_waits_for_all_lanes(killed, monkeypatch) -> None:
    alive, heir, _ = killed
    with noticed(monkeypatch) as met:
        asking = asyncio.create_task(command("handler", "list", "--worker", alive.url))
        await asyncio.wait_for(met.wait(), LONG)
        await asyncio.sleep(cli_workers.PAUSE)
        take_over(alive, heir)
        result = await asking
    assert result.exit_code == 0, result.output
    assert "waiting: lane 2: http://127.0.0.1:" in result.stderr
    assert "has not answered" not in result.stderr


async def test_a_command_gives_up_at_last(killed, monkeypatch) -> None:
    alive, _, _ = killed
    monkeypatch.setattr(cli_workers, "PATIENCE", 0.3)
    monkeypatch.setattr(cli_workers, "FOR_ALL_LANES", 0.3)
    result = await command("dlq", "list", "--worker", alive.url)
    assert result.exit_code == 1
    assert "(waited for 0.3 s)" in str(result.exception)
    result = await command("handler", "list", "--worker", alive.url)
    assert result.exit_code == 0
    assert "lane 2 has not answered" in result.stderr
