"""Addresses of dead letters, and of operations on them."""

from __future__ import annotations

import msgspec

from streams.console import letter_pages
from streams.console.web_request import ApiOperation, Form, Read, WebRequest, asks
from streams.control.history.audit import audit_page
from streams.control.letters.letter_answers import (
    Ask,
    GroupsAnswer,
    JobsAnswer,
    LettersAnswer,
    LetterShown,
    OutcomesAnswer,
    SettledAnswer,
)
from streams.control.letters.letters import group_letters, list_letters, show_letter
from streams.control.letters.operation_answers import OUTCOMES_PATH, outcomes, settled

_decode_ask = msgspec.json.Decoder(Ask).decode


async def _answer(request: WebRequest) -> msgspec.Struct:
    return await settled(request.view, request.names["letter"], request.query, **request.asker(SettledAnswer))


async def _outcomes(request: WebRequest) -> msgspec.Struct:
    return await outcomes(request.view, request.query, **request.asker(OutcomesAnswer))


async def _operate(request: WebRequest) -> msgspec.Struct:
    return await request.jobs.ask(request.json(_decode_ask))


async def _jobs(request: WebRequest) -> msgspec.Struct:
    return JobsAnswer(jobs=request.jobs.all())


async def _job(request: WebRequest) -> msgspec.Struct:
    return await request.jobs.with_results(request.names["job"])


async def _stop(request: WebRequest) -> msgspec.Struct:
    request.check_json()
    return await request.jobs.stop(request.names["job"])


async def _audit(request: WebRequest) -> msgspec.Struct:
    return await audit_page(request.view, request.query)


async def _groups_page(request: WebRequest) -> msgspec.Struct:
    return await letter_pages.groups_page(request.view, request.query, request.asker(GroupsAnswer)["ask"])


async def _letters_page(request: WebRequest) -> msgspec.Struct:
    return await letter_pages.letters_page(request.view, request.query, request.asker(LettersAnswer)["ask"])


ROUTES = (
    Read("/dead-letters", asks(list_letters, LettersAnswer)),
    Read("/dead-letters/groups", asks(group_letters, GroupsAnswer)),
    Read("/dead-letters/jobs", _jobs),
    ApiOperation("/dead-letters/operations", _operate),
    Read(OUTCOMES_PATH.removeprefix("/api"), _outcomes),
    Read("/dead-letters/jobs/{job}", _job),
    ApiOperation("/dead-letters/jobs/{job}/stop", _stop),
    Read("/dead-letters/audit", _audit, "letter_audit.html"),
    Read("/dead-letters/{letter}", asks(show_letter, LetterShown, "letter")),
    Read("/dead-letters/{letter}/answer", _answer),
    # The pages, which show all lanes together.
    Read("/dead-letters", _groups_page, "letter_groups.html", json=None),
    Read("/dead-letters/letters", _letters_page, "letters.html", json=None),
    Form("/dead-letters/letters", letter_pages.operate_on_all),
    Read("/dead-letters/jobs", letter_pages.jobs_page, "letter_jobs.html", json=None),
    Read("/dead-letters/jobs/{job}", letter_pages.job_page, "letter_job.html", json=None),
    Form("/dead-letters/jobs/{job}/stop", letter_pages.stop_job),
    Read("/dead-letters/{letter}", letter_pages.letter_page, "letter.html", json=None),
    Form("/dead-letters/{letter}", letter_pages.operate),
    Read("/dead-letters/{letter}/edit", letter_pages.edit_page, "letter_edit.html", json=None),
    Form("/dead-letters/{letter}/edit", letter_pages.edit),
)
