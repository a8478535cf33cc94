"""Requests to a worker, whichever framework took them, and the two kinds of addresses under /api."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from aiohttp import ClientSession

from streams.control.api.overviews import Overviews
from streams.control.base.access import Access, Visitor
from streams.control.base.lane_rows import Query
from streams.control.base.others import Others
from streams.control.base.owner import ASKED_BY, ask_json
from streams.control.base.standby_rows import STANDBY
from streams.control.base.view import Kept, Problem, WorkerView
from streams.control.letters.jobs import Jobs
from streams.system.loopback import loopback_origin

T = TypeVar("T")
A = TypeVar("A", bound=msgspec.Struct)

_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """A request. `names` are the parts of its path that its address leaves open.

    Attributes:
        kept: the last answers of this worker that were read from Kafka, for when it does not answer.
        path: decoded.
        client: the address of who asks.
        silent: why workers did not answer in time, by their addresses: each is waited for once.
    """

    view: WorkerView
    access: Access
    visitor: Visitor
    session: ClientSession
    jobs: Jobs
    kept: dict[str, Kept]
    overviews: Overviews
    method: str
    path: str
    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    cookies: Mapping[str, str] = field(default_factory=dict)
    client: str = ""
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

    def others(self, kind: type[A]) -> Others[A]:
        """The other workers, to be asked for answers of a class."""
        return Others(partial(self._ask, kind), self.asked_by)

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
        if self.content_type != _JSON or (origin and loopback_origin(origin) is None):
            raise Problem(403, "not_json", "operations are taken as application/json, from this machine only")

    @property
    def content_type(self) -> str:
        """The type of the body, without its parameters."""
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
        return await answer(request.view, subject, request.others(kind))

    return answer_to


class Read(NamedTuple):
    """An answer, as JSON."""

    path: str
    answer: Answer


class ApiOperation(NamedTuple):
    """Something that is changed, by JSON."""

    path: str
    answer: Answer
