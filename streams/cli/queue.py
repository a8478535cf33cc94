"""`steadfaust queue`: job queues in PostgreSQL.

Exit status: 0 done; 1 an error; 3 nothing matched.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streams.cli.database import DryRun, Url, with_database
from streams.cli.options import NOTHING, Json, Limit, json_line, say, takes
from streams.postgres.database import Database
from streams.postgres.queue.operations import (
    STATES,
    discard_jobs,
    list_jobs,
    queue_states,
    retry_jobs,
    show_job,
)

app = typer.Typer(help="Inspect job queues in PostgreSQL, and retry or discard jobs.", no_args_is_help=True)

_PAGE = 1000

Name = Annotated[str, typer.Argument(help="Name of the queue.")]
Numbers = Annotated[list[int] | None, typer.Argument(help="Numbers of jobs. Default: all failed jobs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
_OPTIONS = {"url": (Url, ""), "dry_run": (DryRun, False), "yes": (Yes, False), "as_json": (Json, False)}


@app.command()
def status(
    queue: Annotated[str, typer.Argument(help="Name of a queue. Default: all.")] = "",
    url: Url = "",
    *,
    as_json: Json = False,
) -> None:
    """Count jobs by state. Failed jobs stay until they are retried or discarded."""

    async def work(database: Database) -> list[Any]:
        async with database.acquire() as connection:
            return await queue_states(connection, queue)

    found = with_database(url, work)
    for each in found:
        line = f"{each.queue:<30} {each.state:<10} {each.jobs:>10,}  oldest {each.oldest:%Y-%m-%d %H:%M:%S}"
        say(json_line(each._asdict()) if as_json else line)
    raise typer.Exit(0 if found else NOTHING)


@app.command("list")
def list_(
    queue: Name,
    state: Annotated[str, typer.Option(help=f"Only jobs in this state: {', '.join(STATES)}.")] = "",
    key: Annotated[str, typer.Option(help="Only jobs of this key.")] = "",
    limit: Limit = 50,
    url: Url = "",
    *,
    as_json: Json = False,
) -> None:
    """List the jobs of a queue in order."""
    _require_state(state)

    async def work(database: Database) -> list[dict[str, Any]]:
        async with database.acquire() as connection:
            return await list_jobs(connection, queue, state=state, key=key, limit=limit)

    found = with_database(url, work)
    for job in found:
        say(json_line(_shown(job)) if as_json else _job_line(job))
    raise typer.Exit(0 if found else NOTHING)


@app.command()
def show(
    number: Annotated[int, typer.Argument(help="Number of the job.")], url: Url = "", *, as_json: Json = False
) -> None:
    """Show one job in full, with its payload in hexadecimal."""

    async def work(database: Database) -> dict[str, Any] | None:
        async with database.acquire() as connection:
            return await show_job(connection, number)

    job = with_database(url, work)
    if job is None:
        say(f"there is no job {number}; finished and discarded jobs are deleted", err=True)
        raise typer.Exit(NOTHING)
    if as_json:
        say(json_line(job))
        return
    for name, value in job.items():
        if name == "headers":
            for header, text in value:
                say(f"header        {header}: {text}")
        elif value is not None:
            say(f"{name:<13} {value}")


@app.command()
@takes("url dry_run yes as_json", _OPTIONS)
def retry(queue: Name, numbers: Numbers = None, **given: Any) -> None:
    """Run jobs again now: all failed ones, or those that you name. Their attempts are counted from zero."""
    _many("retry", queue, numbers, **given)


@app.command()
@takes("url dry_run yes as_json", _OPTIONS)
def discard(queue: Name, numbers: Numbers = None, **given: Any) -> None:
    """Discard jobs for good; jobs blocked behind them continue. A job that a worker has leased is kept."""
    _many("discard", queue, numbers, **given)


def _many(
    operation: str,
    queue: str,
    numbers: list[int] | None,
    *,
    url: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    wanted = numbers or with_database(url, lambda database: _failed(database, queue))
    if dry_run or not wanted:
        _tell(operation, wanted, done=False, as_json=as_json)
        raise typer.Exit(0 if wanted else NOTHING)
    if not numbers and not yes:
        typer.confirm(f"{operation} {len(wanted)} failed jobs of {queue}?", abort=True)

    async def work(database: Database) -> list[int]:
        done = []
        for start in range(0, len(wanted), _PAGE):
            async with database.acquire() as connection:
                change = retry_jobs if operation == "retry" else discard_jobs
                done += await change(connection, queue, wanted[start : start + _PAGE])
        return done

    done = with_database(url, work)
    _tell(operation, done, done=True, as_json=as_json)
    raise typer.Exit(0 if done else NOTHING)


async def _failed(database: Database, queue: str) -> list[int]:
    found: list[int] = []
    async with database.acquire() as connection:
        while page := await list_jobs(
            connection, queue, state="failed", after=found[-1] if found else 0, limit=_PAGE
        ):
            found += [job["id"] for job in page]
    return found


def _tell(operation: str, numbers: list[int], *, done: bool, as_json: bool) -> None:
    if as_json:
        say(json_line({"operation": operation, "jobs": numbers, "done": done}))
    else:
        shown = ", ".join(map(str, numbers[:20])) + (", ..." if len(numbers) > 20 else "")
        say(f"{operation}{'' if done else ' would affect'}: {len(numbers)} jobs {shown}")


def _require_state(state: str) -> None:
    if state and state not in STATES:
        raise typer.BadParameter(f"unknown --state {state}: use one of {', '.join(STATES)}")


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name != "headers"}


def _job_line(job: dict[str, Any]) -> str:
    what = f"{job['kind']} {job['topic']} {job['action']}"
    error = f"  {job['error'][:100]!r}" if job["error"] else ""
    has = f"  leased by {job['worker']} until {job['until']:%H:%M:%S}" if job["worker"] else ""
    return (
        f"{job['id']:>10}  {job['state']:<8} {what}  key {job['key'] or '-'}  {job['retry']} failed attempts"
        f"  {job['created']:%Y-%m-%d %H:%M:%S}{has}{error}"
    )
