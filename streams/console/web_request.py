"""Requests to a worker, whichever framework took them, and the three kinds of addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
from aiohttp import ClientSession

from streams.console.overviews import Overviews
from streams.control.base.access import Access, Visitor
from streams.control.base.lane_rows import Query
from streams.control.base.owner import ASKED_BY, ask_json
from streams.control.base.standby_rows import STANDBY
from streams.control.base.view import Kept, Problem, WorkerView
from streams.control.letters.jobs import Jobs
from streams.system.loopback import loopback_origin

T = TypeVar("T")
A = TypeVar("A", bound=msgspec.Struct)

#: The field of a form, and the cookie, that a page of another origin does not know.
CSRF = "csrf"
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """A request. `names` are the parts of its path that its address leaves open.

    Attributes:
        kept: the last answers of this worker that were read from Kafka, for when it does not answer.
        path: decoded.
        csrf: the token of this visitor's forms.
        client: the address of who asks.
        browser: what a browser shows that has logged in before.
        silent: why workers did not answer in time, by their addresses: each is waited for once.
    """

    view: WorkerView
    access: Access
    visitor: Visitor
    session: ClientSession
    jobs: Jobs
    kept: dict[str, Kept]
    overviews: Overviews
    path: str
    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    csrf: str = ""
    client: str = ""
    browser: str = ""
    silent: dict[str, Problem] = field(default_factory=dict)

    @property
    def asked_by(self) -> str | None:
        """The worker that asks, if one does."""
        return self.headers.get(ASKED_BY)

    @property
    def may_be_stale(self) -> bool:
        """Whether a standby's rows will do where the owner does not answer: people look, and see how old
        they are; programs wait for the owner, unless they say `stale=1`.
        """
        return self.asked_by is None and (not self.path.startswith("/api/") or bool(self.query.get("stale")))

    @property
    def rows_query(self) -> dict[str, str]:
        """The query, where only workers ask for a standby's copy."""
        query = dict(self.query)
        if self.asked_by is None:
            query.pop(STANDBY, None)
        return query

    def asker(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """Which worker asks, if one does, and how to ask the owner of something for an answer of a class."""
        return {"asked_by": self.asked_by, "ask": partial(self._ask, kind)}

    async def _ask(self, kind: type[A], owner: str, path: str, query: Query) -> A:
        if (known := self.silent.get(owner)) is not None:
            raise Problem(known.status, known.error, known.detail)
        try:
            return await ask_json(self.session, owner, path, query, kind=kind, asked_by=self.view.url)
        except Problem as problem:
            if problem.error == "owner_silent":
                self.silent[owner] = problem
            raise

    def json(self, decode: Callable[[bytes], T]) -> T:
        """The body. Raises Problem 400, and 403 for what a foreign page could have sent: JSON is not among
        the types that a form has.
        """
        self.check_json()
        try:
            return decode(self.body)
        except msgspec.DecodeError as error:
            raise Problem(400, "bad_request", str(error)) from error

    def check_json(self) -> None:
        """Raise Problem 403 for what a foreign page could have sent."""
        origin = self.headers.get("Origin")
        if self._content_type != _JSON or (origin and loopback_origin(origin) is None):
            raise Problem(403, "not_json", "operations are taken as application/json, from this machine only")

    def form(self) -> dict[str, str]:
        """The fields of a page's own form. Raises Problem 400, and 403 for a form of another page.

        The token alone would do against pages of other hosts. Cookies do not tell the ports of a host apart,
        though, so that a page of another port can set one: what a browser says of the origin counts, too.
        """
        if self._content_type != _FORM:
            raise Problem(400, "not_a_form", f"this address takes a form ({_FORM}), as its page sends it")
        fields = dict(parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True))
        origin = self.headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc != self.headers.get("Host")
        if foreign or not self.csrf or not compare_digest(fields.pop(CSRF, "").encode(), self.csrf.encode()):
            raise Problem(
                403,
                "foreign_form",
                "this form is not of a page of this worker, or the page is too old: open the page again and"
                " send it from there, with cookies allowed",
            )
        if self.visitor.name:
            fields["who"] = self.visitor.name  # a proxy knows better than a form
        return fields

    @property
    def _content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()


Answer = Callable[[WebRequest], Awaitable[msgspec.Struct]]


def asks(
    answer: Callable[..., Awaitable[msgspec.Struct]], kind: type[msgspec.Struct], name: str = ""
) -> Answer:
    """An answer about the query, or about the part `name` of the path, which may come from another worker as
    a struct of this kind.
    """

    async def answer_to(request: WebRequest) -> msgspec.Struct:
        subject = request.names[name] if name else request.query
        return await answer(request.view, subject, **request.asker(kind))

    return answer_to


def from_form(fields: Mapping[str, str], kind: type[T], *names: str) -> T:
    """A struct with these fields of a form. Raises Problem 400."""
    try:
        return msgspec.convert({name: fields.get(name, "") for name in names}, kind)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad_request", str(error)) from error


class FormPage(NamedTuple):
    """A page to show instead of leading to another one: a form that goes on."""

    template: str
    answer: msgspec.Struct


class LoginRedirect(NamedTuple):
    """Where a login or its end leads, and what the browser shows from then on: its session, nothing after the
    end; and, after a login, what tells it from others that have not logged in.
    """

    path: str
    session: str
    browser: str = ""


#: Does what a form's fields ask for, and returns the address of the page to show then.
Act = Callable[[WebRequest, dict[str, str]], Awaitable[str | FormPage | LoginRedirect]]


class Read(NamedTuple):
    """An answer: as a page at `path`, if it has a template, and as JSON at the same path under /api.

    Attributes:
        json: where its JSON is when that is elsewhere; None: nowhere.
        onward: the address to which the page leads straight on, for an answer; empty: it shows the answer.
        unasked: the template for a query without `q`.
    """

    path: str
    answer: Answer
    template: str = ""
    json: str | None = ""
    onward: Callable[[Any], str] | None = None
    unasked: str = ""


class ApiOperation(NamedTuple):
    """Something that is changed, by JSON at this path under /api."""

    path: str
    answer: Answer


class Form(NamedTuple):
    """Something that is changed by a page's form, which then leads to the address that `act` returns."""

    path: str
    act: Act
