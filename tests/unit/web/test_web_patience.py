"""After a kill the dead worker is the listed owner for a while: who asks waits, and is told what for."""

import asyncio
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner
from web_workers import FakeWorker, owned_by, owner_of

from streams.cli import dlq
from streams.cli import workers as cli_workers
from streams.cli.main import app as steadfaust
from streams.control.base import asking as patience_module
from streams.control.base.asking import PATIENCE, patiently
from streams.control.base.owner import ASKED_BY
from streams.control.base.view import Problem
from streams.control.letters import jobs as jobs_module
from tests.waiting import BOUND, eventually_async

pytestmark = pytest.mark.promise("patient-requests")

KEYS = [f"k{n}" for n in range(40)]
ROWS = "/api/tables/parcels/rows"
REPLAY = ["dlq", "replay", "-w", "handler=post.note", "--why", "mended", "--yes", "--job", "all"]
REPLAY += ["--rate", "1000", "--no-wait"]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (patience_module, cli_workers, dlq):
        monkeypatch.setattr(module, "PAUSE", 0.01)


@pytest.fixture
def alive(both: tuple[FakeWorker, FakeWorker], unused_tcp_port: int) -> FakeWorker:
    """A worker with lanes 0 and 1, for whom the owner of the others is one that was killed; what that left
    is on the second one, of which nobody has heard yet.
    """
    alive, heir = both
    dead = f"http://127.0.0.1:{unused_tcp_port}"
    alive.patience = BOUND
    alive.owns({**owned_by(alive), 2: dead, 3: dead})
    for key in KEYS:
        home = owner_of(key, alive, heir)
        home.put(key, note=f"note of {key}")
        home.put_letter(key)
    return alive


@pytest.fixture
def heir(second: FakeWorker) -> FakeWorker:
    return second


def take_over(alive: FakeWorker, heir: FakeWorker) -> None:
    alive.owns(owned_by(alive, heir))


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    met: list[str] = []
    init = Problem.__init__

    def seen(self: Problem, status: int, error: str, detail: str) -> None:
        init(self, status, error, detail)
        met.append(error)

    monkeypatch.setattr(Problem, "__init__", seen)
    return met


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    echo = typer.echo

    def said(line: str, **options: Any) -> None:
        lines.append(line)
        echo(line, **options)

    monkeypatch.setattr(typer, "echo", said)
    return lines


async def met(problems: list[str], error: str = "owner_unreachable") -> None:
    await eventually_async(lambda: problems.count(error) > 2, error)


async def said(told: list[str], words: str) -> None:
    await eventually_async(lambda: any(words in line for line in told), words)


async def test_a_look_up_waits_until_the_lanes_have_another_owner(alive, heir, one, problems):
    key = alive.key_elsewhere()
    asking = asyncio.create_task(one.json(ROWS, params={"key": key}))
    await met(problems)
    assert not asking.done()
    take_over(alive, heir)
    status, answer = await asking
    assert (status, answer["owner"]) == (200, heir.url)
    assert answer["rows"][0]["value"] == {"note": f"note of {key}"}


async def test_it_waits_for_a_lane_that_is_opening_too(alive, heir, one, problems):
    key = alive.key_elsewhere()
    opening = heir.lanes[heir.lane(key)]
    take_over(alive, heir)
    del heir.lanes[opening.number]
    asking = asyncio.create_task(one.json(ROWS, params={"key": key}))
    await met(problems, "lane_not_open")
    assert not asking.done()
    heir.lanes[opening.number] = opening
    assert (await asking)[0] == 200


async def test_the_wait_is_bounded_and_says_what_it_was_for(alive, one):
    alive.patience = 0.3
    status, problem = await one.json(ROWS, params={"key": alive.key_elsewhere()})
    assert (status, problem["error"]) == (502, "owner_unreachable")
    assert problem["detail"].endswith("(and it was so for 0.3 s)")


@pytest.mark.parametrize("headers", [{PATIENCE: "0"}, {ASKED_BY: "http://127.0.0.1:9"}])
async def test_who_waits_himself_is_told_at_once(alive, one, headers):
    status, problem = await one.json(ROWS, params={"key": alive.key_elsewhere()}, headers=headers)
    assert status in (502, 503)
    assert "it was so for" not in problem["detail"]


async def test_patience_that_is_no_number_is_refused(one):
    refused = await one.refusal(ROWS, params={"key": "k"}, headers={PATIENCE: "much"})
    assert refused == (400, "bad_patience")


async def test_what_does_not_pass_is_told_at_once():
    tries = []

    async def refuses() -> None:
        tries.append(1)
        raise Problem(404, "no_row", "there is none")

    with pytest.raises(Problem, match="there is none"):
        await patiently(refuses, BOUND)
    assert len(tries) == 1


# -- operators ---------------------------------------------------------------------------------------------


async def command(*words: str, of: FakeWorker) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, steadfaust, [*words, "--worker", of.url])


async def test_a_replay_waits_for_the_dead_owners_letters(alive, heir, one, told):
    asking = asyncio.create_task(command(*REPLAY, of=alive))
    await said(told, "waiting: the owner, http://127.0.0.1:")
    _, job = await one.json("/api/dead-letters/jobs/all")
    assert job["state"] == "running"
    assert alive.assignment.owners[2] in job["waits_for"]
    take_over(alive, heir)
    result = await asking
    assert result.exit_code == 0, result.output
    assert len(alive.asked) == len(KEYS)
    _, job = await one.json("/api/dead-letters/jobs/all")
    assert (job["state"], job["asked"], job["waits_for"]) == ("done", len(KEYS), "")


async def test_a_job_does_not_wait_for_ever_and_is_resumed(alive, heir, monkeypatch):
    monkeypatch.setattr(jobs_module, "PATIENCE", 0.3)
    result = await command(*REPLAY, of=alive)
    assert result.exit_code == 4
    assert "and it was so for 0.3 s" in result.stderr
    take_over(alive, heir)
    result = await command(*REPLAY, of=alive)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("word", ["list", "groups", "show"])
async def test_a_command_says_what_it_waits_for_and_goes_on(alive, heir, problems, word):
    ident = heir.put_letter(alive.key_elsewhere(), 1)
    alive.owns({2: "http://127.0.0.1:1", 3: "http://127.0.0.1:1"})
    words = [word, ident] if word == "show" else [word]
    asking = asyncio.create_task(command("dlq", *words, of=alive))
    await met(problems)
    assert not asking.done()
    take_over(alive, heir)
    result = await asking
    assert result.exit_code == 0, result.output
    assert result.stderr.count("waiting: the owner, http://127.0.0.1:1, cannot be reached") == 1


async def test_a_list_of_handlers_waits_for_all_lanes(alive, heir, told):
    asking = asyncio.create_task(command("handler", "list", of=alive))
    await said(told, "waiting: lane 2: the owner, http://127.0.0.1:")
    take_over(alive, heir)
    result = await asking
    assert result.exit_code == 0, result.output
    assert "has not answered" not in result.stderr


async def test_a_command_gives_up_at_last(alive, monkeypatch):
    monkeypatch.setattr(cli_workers, "PATIENCE", 0.3)
    monkeypatch.setattr(cli_workers, "FOR_ALL_LANES", 0.3)
    result = await command("dlq", "list", of=alive)
    assert result.exit_code == 1
    assert "(waited for 0.3 s)" in str(result.exception)
    result = await command("handler", "list", of=alive)
    assert result.exit_code == 0
    assert "lane 2 has not answered" in result.stderr
