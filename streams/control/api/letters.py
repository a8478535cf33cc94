"""Addresses of dead letters, and of operations on them."""

from __future__ import annotations

import msgspec

from streams.control.api.web_request import ApiOperation, Read, WebRequest, asks
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
from streams.control.letters.letters import LETTERS_PATH, group_letters, list_letters, show_letter
from streams.control.letters.operation_answers import OUTCOMES_PATH, outcomes, settled

_decode_ask = msgspec.json.Decoder(Ask).decode


async def _answer(request: WebRequest) -> msgspec.Struct:
    return await settled(request.view, request.names["letter"], request.query, request.others(SettledAnswer))


async def _outcomes(request: WebRequest) -> msgspec.Struct:
    return await outcomes(request.view, request.query, request.others(OutcomesAnswer))


async def _operate(request: WebRequest) -> msgspec.Struct:
    return await request.jobs.ask(request.json(_decode_ask))


async def _jobs(request: WebRequest) -> msgspec.Struct:
    return JobsAnswer(jobs=request.jobs.all())


async def _job(request: WebRequest) -> msgspec.Struct:
    return await request.jobs.with_results(request.names["job"])


async def _stop(request: WebRequest) -> msgspec.Struct:
    request.check_json()
    return await request.jobs.stop(request.names["job"])


async def audit(request: WebRequest) -> msgspec.Struct:
    """A page of the log of operations. Raises Problem."""
    return await audit_page(request.view, request.query)


ROUTES = (
    Read(LETTERS_PATH, asks(list_letters, LettersAnswer)),
    Read(f"{LETTERS_PATH}/groups", asks(group_letters, GroupsAnswer)),
    Read(f"{LETTERS_PATH}/jobs", _jobs),
    ApiOperation(f"{LETTERS_PATH}/operations", _operate),
    Read(OUTCOMES_PATH, _outcomes),
    Read(f"{LETTERS_PATH}/jobs/{{job}}", _job),
    ApiOperation(f"{LETTERS_PATH}/jobs/{{job}}/stop", _stop),
    Read(f"{LETTERS_PATH}/audit", audit),
    Read(f"{LETTERS_PATH}/{{letter}}", asks(show_letter, LetterShown, "letter")),
    Read(f"{LETTERS_PATH}/{{letter}}/answer", _answer),
)
