"""Answers about handlers, and operations on them, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Annotated

import msgspec

from streams.control.base.merging import merged_by, total, total_by_name
from streams.control.handlers.awaited_schemas import AwaitedAnswer, longest_awaited
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


def newest_failures(failures: Iterable[Iterable[FailureAnswer]]) -> list[FailureAnswer]:
    """The newest first, no more than an answer has."""
    together = chain.from_iterable(failures)
    return sorted(together, key=lambda each: each.at, reverse=True)[:MOST_FAILURES]


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
    partitions: Annotated[dict[str, int], total_by_name]
    since: str
    who: str
    why: str
    breakers: Annotated[dict[str, int], total_by_name]
    keys: Annotated[int, total]
    attempts: Annotated[int, total]
    waiting: Annotated[dict[str, int], total_by_name]
    counted_all: Annotated[bool, all]
    schemas: Annotated[list[AwaitedAnswer], longest_awaited] = []
    failures: Annotated[list[FailureAnswer], newest_failures] = []

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


def all_handlers(answers: list[HandlersAnswer]) -> HandlersAnswer:
    """Answers for different lanes as one. There is at least one."""
    handlers = [handler for answer in answers for handler in answer.handlers]
    left_out = {lane: why for answer in answers for lane, why in answer.left_out.items()}
    # Who paused it, when and why is of the newest command.
    newest_first = sorted(handlers, key=lambda each: each.since, reverse=True)
    together = sorted(merged_by(newest_first, "handler"), key=lambda each: each.handler)
    return msgspec.structs.replace(answers[0], handlers=together, left_out=dict(sorted(left_out.items())))
