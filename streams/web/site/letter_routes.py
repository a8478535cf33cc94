"""Addresses of dead letters, and of operations on them."""

from __future__ import annotations

import msgspec

from streams.web.history.audit import audit_page
from streams.web.letters.letter_answers import (
    Ask,
    GroupsAnswer,
    JobsAnswer,
    LettersAnswer,
    LetterShown,
    SettledAnswer,
)
from streams.web.letters.letters import group_letters, list_letters, show_letter
from streams.web.letters.operation_answers import settled
from streams.web.site import letter_pages
from streams.web.site.web_request import ApiOperation, Form, Read, WebRequest

_decode_ask = msgspec.json.Decoder(Ask).decode


async def _letters(asked: WebRequest) -> msgspec.Struct:
    return await list_letters(asked.view, asked.query, **asked.asker(LettersAnswer))


async def _groups(asked: WebRequest) -> msgspec.Struct:
    return await group_letters(asked.view, asked.query, **asked.asker(GroupsAnswer))


async def _letter(asked: WebRequest) -> msgspec.Struct:
    return await show_letter(asked.view, asked.names["letter"], **asked.asker(LetterShown))


async def _answer(asked: WebRequest) -> msgspec.Struct:
    return await settled(asked.view, asked.names["letter"], asked.query, **asked.asker(SettledAnswer))


async def _operate(asked: WebRequest) -> msgspec.Struct:
    return await asked.jobs.ask(asked.json(_decode_ask))


async def _jobs(asked: WebRequest) -> msgspec.Struct:
    return JobsAnswer(jobs=asked.jobs.all())


async def _job(asked: WebRequest) -> msgspec.Struct:
    return asked.jobs.get(asked.names["job"])


async def _stop(asked: WebRequest) -> msgspec.Struct:
    asked.check_json()
    return await asked.jobs.stop(asked.names["job"])


async def _audit(asked: WebRequest) -> msgspec.Struct:
    return await audit_page(asked.view, asked.query)


async def _groups_page(asked: WebRequest) -> msgspec.Struct:
    return await letter_pages.groups_page(asked.view, asked.query, asked.asker(GroupsAnswer)["ask"])


async def _letters_page(asked: WebRequest) -> msgspec.Struct:
    return await letter_pages.letters_page(asked.view, asked.query, asked.asker(LettersAnswer)["ask"])


ROUTES = (
    Read("/dead-letters", _letters),
    Read("/dead-letters/groups", _groups),
    Read("/dead-letters/jobs", _jobs),
    ApiOperation("/dead-letters/operations", _operate),
    Read("/dead-letters/jobs/{job}", _job),
    ApiOperation("/dead-letters/jobs/{job}/stop", _stop),
    Read("/dead-letters/audit", _audit, "letter_audit.html"),
    Read("/dead-letters/{letter}", _letter),
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
