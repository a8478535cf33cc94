"""Operations on many letters: a job goes through them at a bounded rate, and can be stopped.

It lives in the worker that took the request. An operation's id is made of the job's name and the letter, and
the lane takes each id once: to resume a job, also elsewhere, is to start it again by the same name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
import uuid_utils
from msgspec.structs import replace

from streams.control.base.asking import patiently
from streams.control.base.lane_rows import Query, lane_of_cursor
from streams.control.base.paging import MOST_ROWS
from streams.control.base.view import Problem, WorkerView, require_reason
from streams.control.letters.letter_answers import (
    Ask,
    GroupAnswer,
    JobAnswer,
    JobResults,
    LetterAnswer,
    LettersAnswer,
    OutcomesAnswer,
    SettledAnswer,
    all_groups,
)
from streams.control.letters.letters import FILTERS, partition_and_key
from streams.engine.waiting.dead_letters.row import LetterState, topic_of
from streams.errors import Unencodable
from streams.model.application import Application
from streams.model.envelope import derived_id, new_headers
from streams.model.operations import LetterCommand, Operation, encode_operation
from streams.ports import TP, Outgoing

log = structlog.get_logger(__name__)

#: A page of letters for a query: `letters.list_letters` with all but its query given.
Page = Callable[[Query], Awaitable[LettersAnswer]]

#: How operations have ended: `operation_answers.outcomes` with all but its query given.
Outcomes = Callable[[Query], Awaitable[OutcomesAnswer]]

#: Letters of a job whose operations are followed to their end, and those that one look goes through.
MOST_FOLLOWED, MOST_LOOKED_AT = 10_000, 200
#: Errors that the results of a job name.
MOST_ERRORS = 5
#: Seconds for which a job waits for a lane's owner, each time; then it fails, and can be resumed.
PATIENCE = 120.0
#: Jobs that are remembered after they have ended.
REMEMBERED = 100
#: The states of the letters that an operation can do something about; those in brackets with force.
_STATES = {
    LetterCommand.REPLAY: (("dead",), ("parked",)),
    LetterCommand.DISCARD: (("dead", "parked"), ()),
    LetterCommand.RESTORE: (("discarded",), ()),
    LetterCommand.EDIT: (("dead",), ("parked",)),
}


class Jobs:
    """The jobs of one worker."""

    def __init__(self, view: WorkerView, page: Page, outcomes: Outcomes) -> None:
        self._view = view
        self._page = page
        self._outcomes = outcomes
        self._followed: dict[str, dict[str, SettledAnswer | None]] = {}
        self._jobs: dict[str, JobAnswer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, Ask] = {}

    async def ask(self, request: Ask) -> JobAnswer:
        """Ask for operations about letters that are named, at once; or begin to look for those that match.

        Raises Problem for a request that is not possible.
        """
        _check(self._view.application, request)
        request = replace(request, job=request.job or str(uuid_utils.uuid7()))
        running = self._tasks.get(request.job)
        if running is not None and not running.done():
            if request != self._asked[request.job]:
                raise Problem(409, "job_runs", f"job {request.job!r} does something else: stop it first")
            return self._jobs[request.job]
        job = self._jobs[request.job] = JobAnswer(
            job=request.job,
            operation=str(request.operation),
            state="running",
            dry_run=request.dry_run,
            looked=0,
            matched=0,
            asked=0,
            lane=0,
            lanes=self._view.application.layout.lanes,
            groups=[],
        )
        self._asked[request.job] = request
        self._forget_old()
        if request.letters:
            return await self._send_named(request, job)
        self._tasks[request.job] = asyncio.create_task(self._run(request, job))
        return job

    async def _send_named(self, request: Ask, job: JobAnswer) -> JobAnswer:
        n = len(request.letters)
        try:
            if not request.dry_run:
                await self._send(request, request.letters)
        except Exception as error:
            self._became(job, state="failed", error=f"{type(error).__name__}: {error}")
            raise
        return self._became(job, state="done", looked=n, matched=n, asked=0 if request.dry_run else n)

    def get(self, name: str) -> JobAnswer:
        """How far a job is. Raises Problem 404."""
        if name not in self._jobs:
            raise Problem(404, "no_job", f"this worker ({self._view.url}) has no job {name!r}")
        return self._jobs[name]

    async def with_results(self, name: str) -> JobAnswer:
        """A job, and how its operations have ended so far. Raises Problem 404."""
        job, followed = self.get(name), self._followed.get(name, {})
        if not followed:
            return job
        left = [letter for letter, known in followed.items() if known is None or not known.is_final]
        query = {"job": name, "operation": job.operation, "letters": ",".join(left[:MOST_LOOKED_AT])}
        for each in (await self._outcomes(query)).outcomes if left else []:
            del followed[each.letter]  # it goes to the end: the others come first at the next look
            followed[each.letter] = each
        return replace(job, results=results_of(followed))

    def request_of(self, name: str) -> Ask:
        """The request of a job. Raises Problem 404."""
        self.get(name)
        return self._asked[name]

    def all(self) -> list[JobAnswer]:
        """Every job that is remembered."""
        return list(self._jobs.values())

    async def stop(self, name: str) -> JobAnswer:
        """Send no more operations. Those that were sent are carried out."""
        self.get(name)
        task = self._tasks.get(name)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self.get(name)

    async def close(self) -> None:
        """Stop all."""
        for name in list(self._tasks):
            await self.stop(name)

    # -- running --------------------------------------------------------------------------------------

    async def _run(self, request: Ask, job: JobAnswer) -> None:
        try:
            job = await self._go_through(request, job)
            self._became(job, state="done")
        except asyncio.CancelledError:
            self._became(self._jobs[request.job], state="stopped")
            raise
        except Exception as error:
            log.exception("job_failed", job=request.job)
            self._became(self._jobs[request.job], state="failed", error=f"{type(error).__name__}: {error}")

    async def _go_through(self, request: Ask, job: JobAnswer) -> JobAnswer:
        states = _states(request)
        clock = asyncio.get_running_loop().time
        began, cursor = clock(), ""
        while True:
            query = {**request.matching, "limit": str(MOST_ROWS), "cursor": cursor}
            page = await patiently(lambda: self._page(query), PATIENCE, waits=partial(self._waits, request))  # noqa: B023 - called at once
            found = [letter for letter in page.letters if letter.state in states or _is_idle(request, letter)]
            job = self._became(
                job,
                looked=job.looked + page.looked,
                matched=job.matched + len(found),
                groups=all_groups([*job.groups, *_groups(found)]),
                lane=lane_of_cursor(cursor),
                waits_for="",
            )
            slice_ = max(1, min(100, int(request.rate / 5)))
            for at in range(0, 0 if request.dry_run else len(found), slice_):
                some = [letter.id for letter in found[at : at + slice_]]
                await self._send(request, some)
                job = self._became(job, asked=job.asked + len(some))
                await asyncio.sleep(max(0.0, began + job.asked / request.rate - clock()))
            cursor = page.next
            if not cursor:
                return self._became(job, lane=job.lanes)

    def _waits(self, request: Ask, problem: Problem) -> None:
        job = self._jobs[request.job]
        if job.waits_for != problem.detail:
            log.info("job_waits", job=request.job, reason=problem.detail)
            self._became(job, waits_for=problem.detail)

    def _became(self, job: JobAnswer, **changes: object) -> JobAnswer:
        self._jobs[job.job] = replace(job, **changes)
        return self._jobs[job.job]

    def _forget_old(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.state != "running"]
        for name in ended[: max(0, len(self._jobs) - REMEMBERED)]:
            del self._jobs[name]
            self._tasks.pop(name, None)
            self._asked.pop(name, None)
            self._followed.pop(name, None)

    async def _send(self, request: Ask, letters: Sequence[str]) -> None:
        app, now = self._view.application, self._view.now()
        posts = [message_of(app, request, letter, now) for letter in letters]
        await self._view.operate(posts)
        followed = self._followed.setdefault(request.job, {})
        for letter in letters:
            if len(followed) < MOST_FOLLOWED:
                followed.setdefault(letter, None)


def results_of(followed: Mapping[str, SettledAnswer | None]) -> JobResults:
    """The results of operations on letters, so far."""
    known = [each for each in followed.values() if each is not None]
    counts = Counter(each.outcome or "unsettled" for each in known)
    failed = [each for each in known if each.outcome == "failed"]
    errors = Counter(each.detail for each in failed)
    return JobResults(
        **{name: counts[name] for name in ("handled", "failed", "waiting", "refused", "done", "discarded")},
        unsettled=counts["unsettled"] + len(followed) - len(known),
        errors=dict(errors.most_common(MOST_ERRORS)),
        why_waiting=next((each.detail for each in known if each.outcome == "waiting"), ""),
        example=failed[0].letter if failed else "",
    )


def operation_id(job: str, operation: LetterCommand, letter: str) -> bytes:
    """The id of an operation: of one letter in one job there is one."""
    return derived_id(job.encode(), f"{operation}:{letter}".encode(), 0)


def source_of(app: Application) -> str:
    """The source of operations, `ce_source`."""
    return f"{app.layout.app_id}/desk"


def message_of(app: Application, request: Ask, letter: str, now: float) -> tuple[TP, Outgoing]:
    """The message that asks a letter's lane for an operation, and where it goes."""
    partition, key = partition_and_key(app, letter)
    operation = Operation(
        kind=request.operation,
        letter=letter,
        who=request.who,
        why=request.why,
        at_ms=int(now * 1000),
        force=request.force,
        job=request.job,
        value=request.value,
        headers=request.headers,
    )
    if request.operation is LetterCommand.EDIT and app.wiring.is_source(topic_of(key)):
        raise Problem(400, "bad_message", f"{topic_of(key)} is a source: others write it, nobody edits it")
    if request.message is not None:
        operation = _encoded(app, topic_of(key), operation, request.message)
    own_id = operation_id(request.job, request.operation, letter)
    headers = new_headers(
        "steadfaust.operation", letter, source=source_of(app), time=now, message_id=own_id.decode()
    )
    return TP(app.layout.operations, partition), Outgoing(key, encode_operation(operation), headers)


def _encoded(app: Application, topic: str, operation: Operation, message: dict[str, Any]) -> Operation:
    """The operation with a message's bytes as the topic has them. Raises Problem 400."""
    try:
        made = msgspec.convert(message, app.wiring.routes[topic].message)
        codec = app.routes[topic].codec
        return replace(operation, value=codec.encode(made), fingerprint=codec.fingerprint)
    except (msgspec.ValidationError, Unencodable, KeyError) as error:
        raise Problem(400, "bad_message", f"it is no message of {topic}: {error}") from error


def _check(app: Application, request: Ask) -> None:
    require_reason(request.who, request.why)
    if not request.rate > 0:
        raise Problem(400, "bad_rate", f"rate is {request.rate:g}: give operations in a second")
    if len(request.job) > 200:
        raise Problem(400, "bad_job", "a job's name has 200 characters at most")
    if unknown := sorted(request.matching.keys() - set(FILTERS)):
        raise Problem(400, "bad_filter", f"letters cannot be chosen by {unknown}: use {', '.join(FILTERS)}")
    if bool(request.letters) == bool(request.matching):
        raise Problem(400, "no_letters", "name either letters or what they match")
    if len(request.letters) > MOST_ROWS:
        raise Problem(400, "too_many", f"name {MOST_ROWS} letters at most, or what they match")
    for letter in request.letters:
        partition_and_key(app, letter)
    if request.operation is LetterCommand.EDIT:
        require_editing(app)
        if len(request.letters) != 1:
            raise Problem(400, "one_letter", "edit one letter at a time")
        if request.message is not None and request.value is not None:
            raise Problem(400, "two_messages", "give either a message or the bytes of its value")


def require_editing(app: Application) -> None:
    """Raises Problem 403 where dead letters may not be edited."""
    if not app.lane_options.edit_dead_letters:
        raise Problem(403, "no_edit", "editing is off: set STEADFAUST_EDIT_DEAD_LETTERS, and restart")


def _states(request: Ask) -> tuple[str, ...]:
    always, forced = _STATES[request.operation]
    return (*always, *(forced if request.force else ()))


def _is_idle(request: Ask, letter: LetterAnswer) -> bool:
    """Whether a letter is to be discarded of which the replay waits for a handler that is gone."""
    return (
        request.operation is LetterCommand.DISCARD and letter.state == LetterState.REPLAYING and letter.gone
    )


def _groups(letters: Sequence[LetterAnswer]) -> list[GroupAnswer]:
    """The groups of letters in a list, each letter one of its own."""
    return [
        GroupAnswer(
            handler=letter.handler,
            service=letter.service,
            error_type=letter.error_type,
            place=letter.place,
            message_type=letter.message_type,
            count=1,
            oldest=letter.failed_at,
            newest=letter.failed_at,
            example=letter.id,
            message=letter.error_message,
        )
        for letter in letters
    ]
