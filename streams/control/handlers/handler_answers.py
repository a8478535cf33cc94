"""Answers about handlers, and operations on them, as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from streams.control.handlers.awaited_schemas import AwaitedAnswer
from streams.control.handlers.awaited_schemas import merged as merged_schemas
from streams.model.operations import HandlerCommand

RUNNING = "running"


class FailureAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt: when (RFC 3339), of which key, why, and what followed."""

    at: str
    key: str
    error: str
    decision: str


#: Failed attempts of a handler that an answer has.
MOST_FAILURES = 10


class HandlerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A handler in the lanes that have answered.

    Attributes:
        partitions: in how many it is running, paused, draining or drained.
        since, who, why: of the newest command that still applies in some lane; empty when it runs.
        breakers: in how many lanes its circuit breaker is closed, open or half-open.
        keys: ordering keys of which messages wait.
        attempts: those under way that take their time.
        waiting: messages that wait, by the reason for which the first of their key does; only where counted.
        counted_all: False: there are more, for the count has a bound.
        schemas: those that its messages wait for, longest first; some of them, when there are many.
        failures: its last failed attempts, the newest first.
    """

    handler: str
    partitions: dict[str, int]
    since: str
    who: str
    why: str
    breakers: dict[str, int]
    keys: int
    attempts: int
    waiting: dict[str, int]
    counted_all: bool
    schemas: list[AwaitedAnswer] = []
    failures: list[FailureAnswer] = []

    @property
    def state(self) -> str:
        """The handler's state where all partitions are alike; else how many have which."""
        if len(self.partitions) == 1:
            return next(iter(self.partitions))
        total = sum(self.partitions.values())
        parts = [f"{state} in {count} of {total}" for state, count in sorted(self.partitions.items())]
        return ", ".join(parts) or "unknown"


class HandlersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Handlers of all lanes together.

    Attributes:
        partitions: how many there are; those of lanes that have not answered are in no handler's counts.
        left_out: lanes that have not answered, with why.
        max_waiting, max_waiting_bytes: messages of one key that may wait; further ones become dead letters.
    """

    handlers: list[HandlerAnswer]
    partitions: int
    left_out: dict[int, str]
    max_waiting: int
    max_waiting_bytes: int


class AskHandler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about a handler: what to do, by whom and for what reason; both are needed. What was
    requested under the same `id` before is not done again.
    """

    operation: HandlerCommand
    who: str
    why: str
    id: str = ""


class AskedHandler(msgspec.Struct, frozen=True, kw_only=True):
    """The operation, its id, and how many partitions it is for. Their lanes settle it, a moment later."""

    operation: str
    handler: str
    id: str
    partitions: int


def merged(answers: list[HandlersAnswer]) -> HandlersAnswer:
    """Answers for different lanes as one. There is at least one."""
    by_name: dict[str, list[HandlerAnswer]] = {}
    left_out: dict[int, str] = {}
    for answer in answers:
        left_out |= answer.left_out
        for handler in answer.handlers:
            by_name.setdefault(handler.handler, []).append(handler)
    handlers = [_merged(by_name[name]) for name in sorted(by_name)]
    return msgspec.structs.replace(answers[0], handlers=handlers, left_out=dict(sorted(left_out.items())))


def _merged(parts: list[HandlerAnswer]) -> HandlerAnswer:
    newest = max(parts, key=lambda part: part.since)
    return HandlerAnswer(
        handler=newest.handler,
        partitions=_sum([part.partitions for part in parts]),
        since=newest.since,
        who=newest.who,
        why=newest.why,
        breakers=_sum([part.breakers for part in parts]),
        keys=sum(part.keys for part in parts),
        attempts=sum(part.attempts for part in parts),
        waiting=_sum([part.waiting for part in parts]),
        counted_all=all(part.counted_all for part in parts),
        schemas=merged_schemas(each for part in parts for each in part.schemas),
        failures=newest_failures(each for part in parts for each in part.failures),
    )


def newest_failures(failures: Iterable[FailureAnswer]) -> list[FailureAnswer]:
    """The newest first, no more than an answer has."""
    return sorted(failures, key=lambda each: each.at, reverse=True)[:MOST_FAILURES]


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
