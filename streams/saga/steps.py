"""A step of a saga, its options, and how often its commands are retried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import msgspec

from streams.errors import WiringError
from streams.model.policy.bounds import LONGEST, not_a_count, not_seconds
from streams.saga.facts import Facts, Made, filled
from streams.saga.messages import Command

#: Fields of a command that the engine fills.
OWN = frozenset(Command.__struct_fields__)


#: Maximum factor from one delay to the next.
MOST_FACTOR = 100


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a failed or unanswered command is sent again. Delays are in seconds. Raises WiringError.

    Attributes:
        times: maximum number of retries.
        delay: delay before the first retry.
        factor: factor from each delay to the next.
        most: maximum delay.
    """

    times: int = 0
    delay: float = 1.0
    factor: float = 2.0
    most: float = 300.0

    def __post_init__(self) -> None:
        # Checked here, because a saga in flight could not recover from a wrong value.
        if wrong := not_a_count(self.times, 0):
            raise WiringError(f"times of a Backoff {wrong}")
        for name in ("delay", "most"):
            if wrong := not_seconds(getattr(self, name)):
                raise WiringError(f"{name} of a Backoff {wrong}")
        if not isinstance(self.factor, int | float) or not 1 <= self.factor <= MOST_FACTOR:
            raise WiringError(
                f"factor of a Backoff is {self.factor!r}: give 1 for equal delays, or up to {MOST_FACTOR}"
            )

    def wait(self, tries: int) -> float | None:
        """Seconds from the failed attempt number `tries` (from 1) to the next; None if no retry is left."""
        if tries > self.times:
            return None
        return min(self.delay * self.factor ** min(tries - 1, 64), self.most)


NEVER = Backoff()
#: For commands that have to succeed in the end: retries for about half an hour.
PATIENT = Backoff(times=10, delay=5.0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Result of a local step that turns the saga back; `reason` is a word for programs."""

    reason: str


class StepOptions(TypedDict, total=False):
    """The options of a step.

    compensate: command that compensates the step. Each step before the pivot needs one, or `changes_nothing`.
    changes_nothing: whether the step has nothing to compensate.
    timeout: seconds to wait for a reply to the command, and to the compensation. A participant in the same
        application has as long to work on a command, from when it takes it, and is asked for its state before
        the step times out.
    retry: retries before the saga turns back. A refusal is not retried.
    retry_compensation: retries of the compensation before the saga is `failed`.
    reply: class of the reply's data, whose fields later commands may use.
    when: function of the facts that decides, when its turn comes, whether the step runs.
    fields: values for fields of its commands that are not among the facts by name.
    """

    compensate: type[Command]
    changes_nothing: bool
    timeout: float
    retry: Backoff
    retry_compensation: Backoff
    reply: type[msgspec.Struct]
    when: Callable[[Facts], bool]
    fields: Made


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a saga.

    Attributes:
        name: unique in the saga.
        command: command for its participant.
        local: function of the facts, instead of a command.
        compensate, changes_nothing, timeout, retry, retry_compensation, reply, when, fields: as in
            `StepOptions`.
        forward_only: whether it comes after the pivot, so that it is retried until it succeeds or an operator
            decides.
        pivot: whether the saga cannot turn back once the step is done.
    """

    name: str
    command: type[Command] | None = None
    local: Callable[[Facts], msgspec.Struct | Refusal | None] | None = None
    compensate: type[Command] | None = None
    changes_nothing: bool = False
    timeout: float = 30.0
    retry: Backoff | None = None
    retry_compensation: Backoff = PATIENT
    reply: type[msgspec.Struct] | None = None
    when: Callable[[Facts], bool] | None = None
    fields: Made = field(default_factory=dict)
    forward_only: bool = False
    pivot: bool = False

    @property
    def commands(self) -> tuple[type[Command], ...]:
        """The command and the compensation, without those that the step does not have."""
        return tuple(kind for kind in (self.command, self.compensate) if kind is not None)

    @property
    def asking(self) -> Backoff:
        """How often a participant in this application is asked about a timed-out command, for about a day."""
        return Backoff(times=30, delay=min(2 * self.timeout, LONGEST), most=max(3600.0, self.timeout))

    @property
    def tries(self) -> Backoff:
        """Retries of the command: `retry`, or by default PATIENT if it cannot be undone, else none."""
        if self.retry is not None:
            return self.retry
        return PATIENT if self.forward_only or (self.pivot and self.compensate is None) else NEVER

    def command_of(self, kind: type[Command], facts: Facts, **own: Any) -> Command:
        """Make a command of this step, filled from the facts. `own` has the fields that every command has."""
        return kind(**own, **filled(kind, facts, self.fields, OWN))


def step(name: str, command: type[Command], **options: Unpack[StepOptions]) -> Step:
    """Make a step for `Saga.together`."""
    return Step(name, command, **options)
