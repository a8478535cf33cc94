"""Answers of the overview: of one worker, and of all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Annotated
from urllib.parse import quote, urlencode

import msgspec

from streams.control.base.asked import address_of
from streams.control.base.merging import each_by, earliest, known, total
from streams.control.overview.hours import HourLine
from streams.control.overview.pace import PacePart


def worker_link(url: str) -> str:
    """The page of a worker, on any worker."""
    return f"/workers/{quote(url.partition('://')[2], safe=':')}"


def letters_link(handler: str) -> str:
    """The page of a handler's dead letters."""
    return f"/dead-letters?{urlencode({'handler': handler})}"


def saga_link(ident: str) -> str:
    """The page of a saga."""
    return address_of("/sagas", "saga", ident)


def topic_link(topic: str) -> str:
    """A topic's page."""
    return f"/topics/{quote(topic, safe='')}"


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A warning, with the address where it is mended. `grave`: messages are stopped, or need a decision.
    `word`: its status in a word or two. `about`: its subject, where the heading has the text. `why` and
    `since`: its cause, and when it began, in RFC 3339. `do`: what to do. The last three are empty where the
    text has it, or nobody knows. `weight` orders decisions: the heaviest comes first.
    """

    text: str
    link: str
    where: str
    grave: bool = False
    word: str = "Degraded"
    about: str = ""
    why: str = ""
    since: str = ""
    do: str = ""
    weight: int = 0


class FlowProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy of changelogs is.

    Attributes:
        copied, total: offsets, transaction markers counted.
        percent: of 100, rounded down: 100 means that nothing is left.
        rate: offsets per second, since it began.
        seconds_left: at that rate; None while nothing was copied.
    """

    copied: int
    total: int
    percent: int
    rate: float
    seconds_left: float | None


class LanePart(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of the worker that tells.

    Attributes:
        backlog: messages taken and not committed.
        lag: those, and messages that are not taken yet; None while it is not open.
        oldest: age in seconds of the oldest message that was read and is not committed.
        commits: transactions per second, over the last ten seconds.
        idle: seconds since it has committed, or had nothing to do.
        recovery: None: it has nothing to recover.
    """

    lane: int
    state: str
    partitions: tuple[int, ...]
    backlog: int
    lag: int | None
    oldest: float | None
    commits: float
    idle: float
    stuck: bool
    error: str
    recovery: FlowProgress | None = None


class StandbyPart(msgspec.Struct, frozen=True, kw_only=True):
    """A lane that the worker follows. `behind`: offsets still to copy; None: it is not reading. `copying` is
    set while it catches up after its beginning.
    """

    lane: int
    behind: int | None
    copying: FlowProgress | None = None


class TopicPart(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, in the lanes of the worker that tells, or of all.

    Attributes:
        rate, rate_minute: messages taken per second, over the last ten seconds and over the last minute.
        lag: messages not yet taken; `lag_before`: a minute ago.
    """

    topic: str
    rate: Annotated[float, total] = 0.0
    rate_minute: Annotated[float, total] = 0.0
    lag: Annotated[int, total] = 0
    lag_before: Annotated[int, total] = 0


class LetterErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with one error at one place: how many of those that were read, and the text of one."""

    error: str
    place: str
    text: str
    count: Annotated[int, total]


most_frequent = each_by("error", "place", order=lambda each: -each.count)


class HandlerPart(msgspec.Struct, frozen=True, kw_only=True):
    """A handler, in the lanes of the worker that tells, or of all.

    Attributes:
        rate, rate_minute: attempts per second, over the last ten seconds and over the last minute.
        failures: attempts among them that failed, in the last minute.
        durations: attempts of the last minute by how long they took: one number for each bound of
            `engine.staging.measures.DURATIONS`, and one for what took longer.
        waiting: messages that wait for it, by the reason; as counted last.
        oldest_waiting: age of the oldest of them, in seconds; 0: there is none.
        letters: dead letters that are not discarded, as counted last; `letters_since` when the first failed,
            RFC 3339.
        letter_errors: why they failed, the most frequent first; of at most so many as a lane reads.
        held_sagas: overdue sagas of the keys of its dead letters.
        paused: partitions in which an operator has it paused.
        breakers: lanes in which its circuit breaker is not closed.
        pause: who has paused it, and why; empty: it is not paused.
        since: when it was paused, or else a breaker opened, in RFC 3339; empty: neither is so.
        error: that of its last attempt that failed, as far as its lanes remember.
    """

    handler: str
    rate: Annotated[float, total] = 0.0
    rate_minute: Annotated[float, total] = 0.0
    failures: Annotated[int, total] = 0
    durations: Annotated[list[int], total] = []
    waiting: Annotated[dict[str, int], total] = {}
    oldest_waiting: Annotated[float, max] = 0.0
    letters: Annotated[int, total] = 0
    letters_since: Annotated[str, earliest] = ""
    letter_errors: Annotated[list[LetterErrors], most_frequent] = []
    held_sagas: Annotated[int, total] = 0
    paused: Annotated[int, total] = 0
    breakers: Annotated[int, total] = 0
    pause: Annotated[str, known] = ""
    since: Annotated[str, earliest] = ""
    error: Annotated[str, known] = ""

    @property
    def stopped(self) -> str:
        """Why its messages wait, in words that follow `is`; empty: it runs."""
        since = f" since {self.since}" if self.since else ""
        if self.paused:
            return f"paused{since}" + (f", {self.pause[0].lower()}{self.pause[1:]}" if self.pause else "")
        if self.breakers:
            error = f": {self.error}" if self.error else ""
            return f"stopped by its open circuit breaker{since}{error}"
        return ""

    @property
    def waits(self) -> int:
        """Messages that wait for it, whatever the reason."""
        return sum(self.waiting.values())


class NamedSaga(msgspec.Struct, frozen=True, kw_only=True):
    """A saga, why it does not go on, in words, and since when it failed or is under way: RFC 3339."""

    id: str
    why: str
    since: str


class LaneCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a lane as they were counted `at` a time, epoch seconds.

    Attributes:
        waiting: messages that wait, by handler and reason; `oldest`: since when the first of each handler's
            waits, epoch seconds.
        letters: dead letters that are not discarded, by handler; `letters_since` when the oldest failed, in
            epoch seconds, and `letter_errors` why they did.
        sagas: by status; `stalled` are those that take too long, without those that wait for an operator.
        held_sagas: how many of the stalled ones have a dead letter, by its handler.
        failed_saga, overdue_saga: the oldest of each; the latter without a dead letter.
    """

    lane: int
    at: float
    waiting: dict[str, dict[str, int]] = {}
    oldest: dict[str, float] = {}
    letters: dict[str, int] = {}
    letters_since: dict[str, float] = {}
    letter_errors: dict[str, list[LetterErrors]] = {}
    sagas: dict[str, int] = {}
    stalled: int = 0
    held_sagas: dict[str, int] = {}
    failed_saga: NamedSaga | None = None
    overdue_saga: NamedSaga | None = None


class WorkerPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one worker.

    Attributes:
        silent: why it tells nothing; what the group knows of its lanes is all that is known then. `since`:
            when that was seen first, in RFC 3339.
        owns: the lanes that it has by the group's assignment.
        measured: whether it counts attempts and rows at all (`STEADFAUST_METRICS`).
        span: seconds that its rates cover, up to ten; 0: it has just started.
        counts: its last counts of rows, of each lane that it runs.
        away: lanes without progress because Kafka does not answer, each with the seconds since its last one.
        pace: how late its event loop is; None: it is of a version that does not tell.
        version: that of this library.
    """

    url: str
    slot: int = -1
    silent: str = ""
    since: str = ""
    ready: bool = False
    measured: bool = False
    span: float = 0.0
    owns: list[int] = []
    lanes: list[LanePart] = []
    standbys: list[StandbyPart] = []
    topics: list[TopicPart] = []
    handlers: list[HandlerPart] = []
    counts: list[LaneCounts] = []
    away: dict[int, float] = {}
    warnings: list[Warned] = []
    pace: PacePart | None = None
    version: str = ""

    @property
    def rate(self) -> float:
        """Attempts of its handlers per second, over the last ten seconds."""
        return sum(each.rate for each in self.handlers)

    @property
    def oldest(self) -> float | None:
        """Age in seconds of its oldest message that was read and is not committed."""
        return max((lane.oldest for lane in self.lanes if lane.oldest is not None), default=None)

    @property
    def name(self) -> str:
        """Its address, without the scheme."""
        return self.url.partition("://")[2] or self.url

    @property
    def link(self) -> str:
        """Its page."""
        return worker_link(self.url)


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """All workers together; by name. `counts` has the newest counts of each lane."""

    topics: dict[str, TopicPart]
    handlers: dict[str, HandlerPart]
    workers: list[WorkerPart]
    warnings: list[Warned]
    counts: dict[int, LaneCounts] = {}

    @property
    def sagas(self) -> dict[str, int]:
        """Sagas by status."""
        total: Counter[str] = Counter()
        for each in self.counts.values():
            total.update(each.sagas)
        return dict(total)

    @property
    def stalled(self) -> int:
        """Sagas that take too long, without those that wait for an operator."""
        return sum(each.stalled for each in self.counts.values())

    @property
    def held_sagas(self) -> int:
        """Those of the stalled ones that have a dead letter, which is a problem of its own."""
        return sum(sum(each.held_sagas.values()) for each in self.counts.values())


class HandlerShown(msgspec.Struct, frozen=True, kw_only=True):
    """A handler, for people: durations in seconds, None where nothing ran in the last minute."""

    handler: str
    topics: list[str]
    numbers: HandlerPart
    p50: float | None
    p95: float | None

    @property
    def letters_link(self) -> str:
        """The page of its dead letters."""
        return letters_link(self.handler)


class ServiceShown(msgspec.Struct, frozen=True, kw_only=True):
    """The handlers of a service."""

    service: str
    handlers: list[HandlerShown]


class TopicShown(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with who sends it, as far as the wiring knows, and whose handlers take it: services."""

    topic: str
    message: str
    senders: list[str]
    takers: list[str]
    numbers: TopicPart

    @property
    def link(self) -> str:
        """Its page."""
        return topic_link(self.topic)


class OverviewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole application at a glance. `asked` is the worker that has put it together, `at` when: RFC 3339.
    `rate` is that of handlers' attempts, `lag` of all topics; `lanes` how many there are, `homeless` those
    that no worker owns.

    Each lane counts once: with the newest counts of its rows, also those of an owner that is silent now.

    Attributes:
        counted: age in seconds of the oldest counts of a lane; None: no lane is counted yet.
        old_counts: lanes whose counts are older than half a minute, with their age in seconds.
        uncounted: lanes whose rows are in no count.
        silent_lanes: lanes whose owner does not answer: their rates and lags are in no sum.
        sagas: by status; `stalled` are those that take too long, without those that wait for an operator.
        lines: the last hour of attempts, lag, waiting messages, dead letters, and sagas that need a decision.
    """

    app_id: str
    asked: str
    at: str
    warnings: list[Warned]
    rate: float
    lag: int
    waiting: int
    letters: int
    lanes: int
    homeless: list[int]
    workers: list[WorkerPart]
    services: list[ServiceShown]
    topics: list[TopicShown]
    counted: float | None = None
    old_counts: dict[int, float] = {}
    uncounted: list[int] = []
    silent_lanes: list[int] = []
    sagas: dict[str, int] = {}
    stalled: int = 0
    lines: dict[str, HourLine] = {}

    @property
    def lacking(self) -> str:
        """A sentence on what the figures lack, or have from before; empty: nothing."""
        found = []
        if self.silent_lanes:
            found.append(f"Rates and lag lack {lanes_text(self.silent_lanes)}, whose owner does not answer")
        if self.uncounted:
            found.append(f"counts lack {lanes_text(self.uncounted)}, not counted yet")
        if self.old_counts:
            oldest = max(self.old_counts.values())
            found.append(f"counts of {lanes_text([*self.old_counts])} are up to {oldest:.0f} s old")
        text = "; ".join(found)
        return text[:1].upper() + text[1:]


def lanes_text(numbers: Collection[int]) -> str:
    """Lanes by their numbers, in words."""
    return f"lane{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
