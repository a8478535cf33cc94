"""The operators' desk as pages: dead letters of all lanes together, and forms that act on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from difflib import ndiff
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from streams.console.message_fields import EditField, fields_of, skeleton, with_fields
from streams.console.page import Form, FormPage, Page
from streams.control.api.letters import audit
from streams.control.api.web_request import WebRequest
from streams.control.base.lane_rows import Query
from streams.control.base.others import Others, lane_after_lane
from streams.control.base.paging import decode_limit
from streams.control.base.view import Problem, WorkerView
from streams.control.letters.jobs import require_editing
from streams.control.letters.letter_answers import (
    Ask,
    GroupAnswer,
    GroupsAnswer,
    JobAnswer,
    JobsAnswer,
    LetterAnswer,
    LettersAnswer,
    LetterShown,
    SettledAnswer,
    all_groups,
)
from streams.control.letters.letters import (
    FILTERS,
    filter_of,
    group_letters,
    list_letters,
    partition_and_key,
    show_letter,
)
from streams.control.letters.operation_answers import settled
from streams.engine.waiting.dead_letters.row import topic_of
from streams.model.message import Message
from streams.model.operations import LetterCommand
from streams.model.row_keys import split_row_key
from streams.units import DAY

#: Letters looked at for one page at most.
MOST_LOOKED_AT = 20_000
LETTERS = "/dead-letters"
_decode_message = msgspec.json.Decoder(dict[str, Any]).decode


class GroupsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of the letters looked at; `next` is not empty where there are more. Of lanes that are left out
    it says why.
    """

    groups: list[GroupAnswer]
    looked: int
    left_out: dict[int, str]
    next: str


class LettersPage(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that match, and what may be done with all of them."""

    letters: list[LetterAnswer]
    looked: int
    left_out: dict[int, str]
    next: str
    matching: dict[str, str]


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """A letter; None when it is gone after an operation. `settled` is how that ended, where it is known by
    the name of its job; `handler` is that of the letter, and `message` the class of its message. `alike`: how
    many other letters failed like it, or more than that; only where the whole page is requested. Letters are
    kept for `kept_days`.
    """

    shown: LetterShown | None
    ident: str
    asked: str
    key: str
    can_edit: bool
    handler: str
    message: str
    settled: SettledAnswer | None = None
    alike: int = 0
    more_alike: bool = False
    kept_days: float = 0.0


class DiffLine(NamedTuple):
    """A line of a message before and after: kept, or of one of them."""

    sign: str
    text: str


class EditPage(msgspec.Struct, frozen=True, kw_only=True):
    """A letter's message, to be edited, or with what an edit would change. `fields` are those of the
    message as it is now, `schema` all of its class, `type` the name of that.
    """

    shown: LetterShown
    message: str
    type: str = ""
    fields: list[EditField] = []
    schema: list[EditField] = []
    diff: list[DiffLine] = []
    problem: str = ""


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A job, with its request."""

    job: JobAnswer
    who: str
    why: str
    matching: dict[str, str]
    force: bool


# -- questions --------------------------------------------------------------------------------------------


async def groups_page(view: WorkerView, query: Query, others: Others[GroupsAnswer]) -> GroupsPage:
    """The groups of all lanes. Raises Problem 400."""
    filter_of(query, view.now())
    groups: list[GroupAnswer] = []

    async def part(query: Query) -> GroupsAnswer:
        return await group_letters(view, query, others)

    def take(found: GroupsAnswer) -> bool:
        nonlocal groups
        groups = all_groups([*groups, *found.groups])
        return False

    looked, left_out, cursor = await _through(view, query, part, take)
    return GroupsPage(groups=groups, looked=looked, left_out=left_out, next=cursor)


async def letters_page(view: WorkerView, query: Query, others: Others[LettersAnswer]) -> LettersPage:
    """Letters of all lanes that match, a page of them. Raises Problem 400."""
    limit = decode_limit(query.get("limit", ""))
    wanted = {name: text for name, text in query.items() if name in FILTERS and text}
    filter_of(wanted, view.now())
    letters: list[LetterAnswer] = []

    async def part(query: Query) -> LettersAnswer:
        some = {**query, "limit": str(limit - len(letters))}
        return await list_letters(view, some, others)

    def take(found: LettersAnswer) -> bool:
        letters.extend(found.letters)
        return len(letters) >= limit

    start = {**wanted, "cursor": query.get("cursor", "")}
    looked, left_out, cursor = await _through(view, start, part, take)
    return LettersPage(letters=letters, looked=looked, left_out=left_out, next=cursor, matching=wanted)


async def _through(
    view: WorkerView,
    query: Query,
    part: Callable[[Query], Awaitable[Any]],
    take: Callable[[Any], bool],
) -> tuple[int, dict[int, str], str]:
    """Take part after part until `take` has enough, or enough was looked at."""
    looked = 0

    async def at(cursor: str) -> tuple[str, bool]:
        nonlocal looked
        found = await part({**query, "cursor": cursor})
        looked += found.looked
        return found.next, take(found) or looked >= MOST_LOOKED_AT

    left_out, cursor = await lane_after_lane(view.application, query.get("cursor", ""), at)
    return looked, left_out, cursor


async def letter_page(request: WebRequest) -> LetterPage:
    """A letter, or that it is gone. Raises Problem."""
    wanted, ident = request.query.get("asked", ""), request.names["letter"]
    shown: LetterShown | None = None
    try:
        shown = await show_letter(request.view, ident, request.others(LetterShown))
    except Problem as problem:
        if problem.error != "no_letter" or not wanted:
            raise
    settled_ = None
    if (job := request.query.get("job")) and wanted:
        query = {"operation": wanted, "job": job}
        settled_ = await settled(request.view, ident, query, request.others(SettledAnswer))
    alike = None
    if shown is not None and "HX-Request" not in request.headers:
        one = shown.letter
        those = {"handler": one.handler, "error_type": one.error_type, "place": one.place}
        those |= {"message_type": one.message_type, "state": one.state}
        alike = await letters_page(request.view, those, request.others(LettersAnswer))
    app, (_, key) = request.view.application, partition_and_key(request.view.application, ident)
    topic, handler = topic_of(key), split_row_key(key)[1].partition(b"\0")[0]
    route = app.wiring.routes.get(topic)
    return LetterPage(
        handler=handler.decode("utf-8", "replace"),
        message=topic if route is None else route.message.__name__,
        settled=settled_,
        shown=shown,
        ident=ident,
        asked=wanted,
        key=shown.letter.key if shown is not None else request.query.get("key", ""),
        can_edit=app.lane_options.edit_dead_letters and not app.wiring.is_source(topic),
        alike=len(alike.letters) - 1 if alike is not None else 0,
        more_alike=bool(alike is not None and alike.next),
        kept_days=app.lane_options.dead_letter_retention / DAY,
    )


async def edit_page(request: WebRequest) -> EditPage:
    """A letter's message, as it may be edited. Raises Problem."""
    shown = await _editable(request)
    return _edit_page(request, shown, _value(request, shown))


async def job_page(request: WebRequest) -> JobPage:
    """A job of this worker. Raises Problem 404."""
    job = await request.jobs.with_results(request.names["job"])
    ask = request.jobs.request_of(job.job)
    return JobPage(job=job, who=ask.who, why=ask.why, matching=ask.matching, force=ask.force)


async def jobs_page(request: WebRequest) -> JobsAnswer:
    """The jobs of this worker, the newest first."""
    return JobsAnswer(jobs=request.jobs.all()[::-1])


# -- forms ------------------------------------------------------------------------------------------------


async def operate(request: WebRequest, fields: Mapping[str, str]) -> str:
    """Replay, discard or restore one letter."""
    ident, operation = request.names["letter"], command_of(fields)
    ask = Ask(operation=operation, letters=[ident], **_reason(fields), force="force" in fields)
    job = await request.jobs.ask(ask)
    query = urlencode({"asked": operation.value, "key": fields.get("key", ""), "job": job.job})
    return f"{LETTERS}/{quote(ident, safe='')}?{query}"


async def edit(request: WebRequest, fields: Mapping[str, str]) -> str | FormPage:
    """Show what an edit would change; once that is confirmed, replay the letter with it."""
    shown = await _editable(request)
    text = fields.get("message", "").replace("\r\n", "\n")
    try:
        message = with_fields(_decode_message(text.encode()), fields)
    except (msgspec.DecodeError, ValueError) as error:
        known = _value(request, shown)
        why = f"This is not a JSON object: {error}" if isinstance(error, msgspec.DecodeError) else str(error)
        page = _edit_page(request, shown, known)
        return FormPage("letter_edit.html", msgspec.structs.replace(page, message=text, problem=why))
    if "confirmed" not in fields:
        page = _edit_page(request, shown, message)
        diff = differences("" if shown.unreadable else pretty(shown.value), page.message)
        return FormPage("letter_edit.html", msgspec.structs.replace(page, diff=diff))
    ask = Ask(
        operation=LetterCommand.EDIT,
        letters=[shown.letter.id],
        **_reason(fields),
        message=message,
        force=True,
    )
    job = await request.jobs.ask(ask)
    query = urlencode({"asked": "edit", "key": shown.letter.key, "job": job.job})
    return f"{LETTERS}/{quote(shown.letter.id, safe='')}?{query}"


async def operate_on_all(request: WebRequest, fields: Mapping[str, str]) -> str:
    """Begin to count the letters that match, or, once confirmed, to do something about each of them."""
    matching = {name: fields[name] for name in FILTERS if fields.get(name)}
    ask = Ask(
        operation=command_of(fields),
        **_reason(fields),
        matching=matching,
        force="force" in fields,
        dry_run="confirmed" not in fields,
    )
    job = await request.jobs.ask(ask)
    return f"{LETTERS}/jobs/{quote(job.job, safe='')}"


async def stop_job(request: WebRequest, _: Mapping[str, str]) -> str:
    """Ask for no more."""
    job = await request.jobs.stop(request.names["job"])
    return f"{LETTERS}/jobs/{quote(job.job, safe='')}"


def command_of(fields: Mapping[str, str]) -> LetterCommand:
    """The operation of a form. Raises Problem 400."""
    text = fields.get("operation", "")
    if text not in ("replay", "discard", "restore"):
        raise Problem(400, "bad_operation", f"operation is {text!r}: use replay, discard or restore")
    return LetterCommand(text)


def differences(before: str, after: str) -> list[DiffLine]:
    """Line by line: `-` was there, `+` comes, a space stays."""
    return [
        DiffLine(line[0], line[2:])
        for line in ndiff(before.splitlines(), after.splitlines())
        if not line.startswith("?")
    ]


def pretty(value: Any) -> str:
    """A message as people edit it."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _edit_page(request: WebRequest, shown: LetterShown, value: Any) -> EditPage:
    kind = _class_of(request, shown)
    return EditPage(
        shown=shown,
        message="" if value is None else pretty(value),
        type=shown.letter.message_type if kind is None else kind.__name__,
        fields=fields_of(value, kind),
        schema=fields_of(skeleton(kind), kind) if shown.unreadable else [],
    )


def _value(request: WebRequest, shown: LetterShown) -> Any:
    """The message as it was; where it cannot be read, one with empty values."""
    return skeleton(_class_of(request, shown)) if shown.unreadable else shown.value


def _class_of(request: WebRequest, shown: LetterShown) -> type[Message] | None:
    return request.view.application.wiring.messages().get(shown.letter.topic)


def _reason(fields: Mapping[str, str]) -> dict[str, Any]:
    return {"who": fields.get("who", ""), "why": fields.get("why", "")}


async def _editable(request: WebRequest) -> LetterShown:
    request.visitor.require_operator()
    require_editing(request.view.application)
    return await show_letter(request.view, request.names["letter"], request.others(LetterShown))


async def _groups_page(request: WebRequest) -> GroupsPage:
    return await groups_page(request.view, request.query, request.others(GroupsAnswer))


async def _letters_page(request: WebRequest) -> LettersPage:
    return await letters_page(request.view, request.query, request.others(LettersAnswer))


ROUTES = (
    Page("/dead-letters", _groups_page, "letter_groups.html"),
    Page("/dead-letters/letters", _letters_page, "letters.html"),
    Form("/dead-letters/letters", operate_on_all),
    Page("/dead-letters/jobs", jobs_page, "letter_jobs.html"),
    Page("/dead-letters/jobs/{job}", job_page, "letter_job.html"),
    Form("/dead-letters/jobs/{job}/stop", stop_job),
    Page("/dead-letters/audit", audit, "letter_audit.html"),
    Page("/dead-letters/{letter}", letter_page, "letter.html"),
    Form("/dead-letters/{letter}", operate),
    Page("/dead-letters/{letter}/edit", edit_page, "letter_edit.html"),
    Form("/dead-letters/{letter}/edit", edit),
)
