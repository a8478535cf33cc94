"""The source of the pages: a worker as they see it. A LaneHost's lanes and standbys fit as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from streams.control.base.database_answers import DatabaseAnswer, OutboxRows
from streams.control.base.scans import Question, Scan
from streams.control.base.windows import LogRange, ReadPage, TopicFacts, Window
from streams.engine.life.state import LaneState
from streams.engine.staging.arrival import Counters
from streams.engine.staging.measures import Measures
from streams.engine.staging.unreadable import UnreadableRows
from streams.engine.waiting.gate import HandlerGate
from streams.engine.way.measures import LaneMeasures
from streams.errors import PositionLost, StoreFailed, TopicMismatch
from streams.model.application import Application
from streams.model.policy.assignment import Assignment
from streams.ports import TP, Outgoing, Store
from streams.saga.views import ChoreographedSaga


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error as JSON: a word for programs, a sentence for people."""

    error: str
    detail: str


#: States in which a lane's store holds what was last committed. In the others it may still be filling up.
READABLE = (LaneState.OPEN, LaneState.QUARANTINED)


class Kept(NamedTuple):
    """An answer, and when it was right, in epoch seconds."""

    at: float
    answer: Any


class Problem(Exception):
    """Why a question has no answer: an HTTP status, a word for programs, a sentence for people."""

    def __init__(
        self, status: int, error: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.headers = dict(headers or {})
        self.status = status
        self.error = error
        self.detail = detail


def require_reason(who: str, why: str) -> None:
    """Raises Problem for an operation that does not say who asks, and why."""
    if not who.strip() or not why.strip():
        raise Problem(400, "no_reason", "who asks, and why (--who, --why)? the log keeps both")


class LaneView(Protocol):
    """A lane, for the pages."""

    @property
    def number(self) -> int:
        """Its number."""

    @property
    def measures(self) -> LaneMeasures:
        """Its measures."""

    @property
    def state(self) -> LaneState:
        """Where it is in its life."""

    @property
    def backlog(self) -> int:
        """Messages taken and not yet committed."""

    @property
    def commits(self) -> int:
        """Transactions committed."""

    @property
    def fenced(self) -> int:
        """Times that another owner has fenced it."""

    @property
    def reopened(self) -> int:
        """Times that it opened again after an error."""

    @property
    def recovered(self) -> int:
        """Changelog records read when it opened last."""

    @property
    def gates(self) -> Mapping[str, HandlerGate]:
        """The gates of its handlers, by name; empty while it is not open."""

    @property
    def foreign(self) -> Collection[TP]:
        """Partitions of looped topics in which others write, too."""

    @property
    def counters(self) -> Counters:
        """What it has met."""

    @property
    def unreadable(self) -> UnreadableRows:
        """The rows that it could not read so far."""

    @property
    def last_progress(self) -> float:
        """When it last committed or opened, seconds since the epoch."""

    @property
    def error(self) -> Exception | None:
        """The last error."""

    @property
    def trouble(self) -> str:
        """What it waits out now, in words for people; empty: nothing."""

    @property
    def store(self) -> Store | None:
        """Its local tables, while it has them open."""


class StandbyView(Protocol):
    """A standby, for the pages."""

    @property
    def number(self) -> int:
        """The lane that it follows."""

    @property
    def records(self) -> int:
        """Changelog records copied since it started."""

    @property
    def to_copy(self) -> tuple[int, float]:
        """Offsets that it had to copy when it began, and since when, by the monotonic clock; 0 once it has
        caught up.
        """

    @property
    def behind(self) -> int | None:
        """Offsets that it has still to copy; None while it is not reading."""

    @property
    def trouble(self) -> str:
        """What it waits out now, in words for people; empty: nothing."""

    @property
    def store(self) -> Store | None:
        """Its copy, while it follows."""

    @property
    def fresh_at(self) -> float:
        """When it last reached the end that brokers reported, in epoch seconds; 0: never so far."""


class WorkerView(Protocol):
    """A worker's state, for its pages; read anew for every page."""

    @property
    def application(self) -> Application:
        """The bound application. Raises SteadfaustError while the worker is starting."""

    @property
    def choreographed(self) -> Sequence[ChoreographedSaga]:
        """Sagas without an orchestrator, which are listed beside those of the application."""

    @property
    def assignment(self) -> Assignment:
        """The last assignment of the group; empty before the worker has joined."""

    @property
    def slot(self) -> int:
        """The number that gives it its directory and port."""

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: a load balancer must send it no more work."""

    @property
    def url(self) -> str:
        """Its own address, as the owners' map names it."""

    @property
    def lanes(self) -> Mapping[int, LaneView]:
        """The lanes it runs."""

    @property
    def standbys(self) -> Mapping[int, StandbyView]:
        """The lanes it follows."""

    @property
    def patience(self) -> float:
        """Seconds for which a lane's owner is looked for: a little over those that a dead one is listed."""

    @property
    def unreadable_announcements(self) -> int:
        """The number of keys of the announcements topic whose newest record is no announcement."""

    @property
    def own_warnings(self) -> Sequence[str]:
        """Warnings about the worker and its machine."""

    @property
    def throttled(self) -> Mapping[str, float]:
        """For how many seconds quotas of the brokers held back this process, by kind of request."""

    @property
    def measured(self) -> bool:
        """Whether the worker serves metrics."""

    @property
    def handlers(self) -> Measures:
        """The measures of its handlers; empty where it has none."""

    @property
    def trace_url(self) -> str:
        """Where traces are looked at, with a place for a trace's id; empty: nowhere."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def operate(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        """Send operators' messages, each to its topic and partition; returns when Kafka has them.
        Raises ClusterUnavailable.
        """

    async def end_session(self, ident: str, until: float) -> None:
        """Let every worker refuse a session that would last until then. Where Kafka does not take it now, it
        follows later. Raises ClusterUnavailable for what this worker cannot keep until then.
        """

    async def scan(self, question: Question) -> Scan:
        """Look through topics. Raises ClusterUnavailable, TopicMismatch or PositionLost."""

    async def topic_facts(self, names: Iterable[str], *, anew: bool = False) -> Mapping[str, TopicFacts]:
        """The topics that exist, by name: as they were a moment ago, unless they are to be looked at
        `anew`. Raises ClusterUnavailable.
        """

    async def logs(self, tps: Iterable[TP]) -> Mapping[TP, LogRange]:
        """Where logs begin and end. Raises ClusterUnavailable or TopicMismatch."""

    async def browse(self, window: Window) -> ReadPage:
        """A page of a topic's records. Raises ClusterUnavailable, TopicMismatch or PositionLost."""

    async def database(self) -> DatabaseAnswer:
        """State of the database edge, or why nothing is known of it."""

    async def outbox_rows(self, published: Mapping[str, float]) -> OutboxRows:
        """The rows of messages' ids in the outbox, each with about when it was published, in epoch seconds;
        none where the worker knows no database.
        """

    def stuck(self) -> Sequence[LaneView]:
        """Lanes with work and without progress, or which have given up."""


def readable_store(view: WorkerView, lane: int) -> Store:
    """The tables of a lane that this worker runs. Raises Problem 503 while they may lack committed rows, and
    where it runs the lane no more: it may have moved while something else was looked at. Their methods raise
    Problem 503 if the disk fails.
    """
    running = view.lanes.get(lane)
    if running is None:
        raise Problem(503, "lane_not_open", f"lane {lane} has moved meanwhile: ask again")
    if running.store is None or running.state not in READABLE:
        why = f": {running.error}" if running.error is not None else ""
        # What does not pass by itself is no reason to wait: a topic is gone, a position is lost.
        word = "lane_closed" if isinstance(running.error, (TopicMismatch, PositionLost)) else "lane_not_open"
        raise Problem(503, word, f"lane {lane} is {running.state}{why}")
    return cast(Store, _Guarded(running.store, lane))


class _Guarded:
    """The store of one lane. Its failing disk is a Problem of this lane, so that an answer over all lanes
    leaves this one out and has the others.
    """

    def __init__(self, store: Store, lane: int) -> None:
        self._store = store
        self._lane = lane

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Guarded) and self._store is other._store

    def __hash__(self) -> int:
        return id(self._store)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def guarded(*args: Any, **options: Any) -> Any:
            with self._failing():
                return method(*args, **options)

        return guarded

    def scan(self, *args: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        with self._failing():
            yield from self._store.scan(*args, **options)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except StoreFailed as error:
            detail = f"lane {self._lane} cannot use its local store: {error}"
            raise Problem(503, "store_failed", detail) from error
