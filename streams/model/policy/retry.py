"""Retry policy: what happens to a message whose handler failed. No I/O (docs/adr/0009).

The lane first retries the message a few times at once. Then the message waits as a row in the lane, once for
each delay, and after the last attempt it becomes a dead letter. The retry topics get a copy of the first
three waits, for people to read; the lane retries from its row. A business refusal is an outcome, not an
error, and is never retried.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from streams.errors import PermanentError, SettingsError, TransientError
from streams.model.policy.bounds import not_a_count, not_classes, not_seconds

#: The topics `.retry-1`, `.retry-2` and `.retry-3` show the first three waits of a message; further ones are
#: in the waiting table alone.
RETRY_TOPICS = 3


class FailureKind(StrEnum):
    """The kind of an error, which decides on the next attempt."""

    TRANSIENT = "transient"  # it may well succeed: network, timeout, 503, busy
    PERMANENT = "permanent"  # it would fail again: validation, 4xx, undecodable
    UNKNOWN = "unknown"  # unclassified; retried like a transient one unless the policy says otherwise


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How failed messages of a handler are retried.

    Raises SettingsError for values that are wrong or contradict each other.

    Attributes:
        immediate: number of immediate retries after the first attempt.
        delays: delay in seconds before each delayed retry, any number of them. A later delay may be
            shorter.
        transient: exception classes that are transient for this handler, including their subclasses.
        permanent: exception classes that are permanent for this handler, including their subclasses.
        unknown_is_permanent: whether an unclassified error dead-letters the message at once.
        hold_while_dead: whether later messages of the ordering key stay blocked while the failed one is a
            dead letter.
    """

    immediate: int = 2
    delays: tuple[float, ...] = (10.0, 60.0, 300.0)
    transient: tuple[type[BaseException], ...] = ()
    permanent: tuple[type[BaseException], ...] = ()
    unknown_is_permanent: bool = False
    hold_while_dead: bool = False

    def __post_init__(self) -> None:
        if wrong := not_a_count(self.immediate, 0):
            raise SettingsError(f"the number of immediate retries {wrong}; 0 is for none")
        if not isinstance(self.delays, tuple | list):
            raise SettingsError(f"the retry delays are {self.delays!r}: give a tuple of seconds")
        for tier, delay in enumerate(self.delays, start=1):
            if wrong := not_seconds(delay):
                raise SettingsError(f"the delay of retry {tier} {wrong}")
        for name in ("transient", "permanent"):
            if wrong := not_classes(getattr(self, name)):
                raise SettingsError(f"{name} {wrong}")
        if both := set(self.transient) & set(self.permanent):
            names = ", ".join(sorted(error.__name__ for error in both))
            raise SettingsError(f"both transient and permanent: {names}; keep each in one of the two")

    @property
    def max_attempts(self) -> int:
        """Number of attempts before a message is dead-lettered, including the first."""
        return 1 + self.immediate + len(self.delays)


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Try again at once, in the lane: an immediate retry."""


@dataclass(frozen=True, slots=True)
class Later:
    """The message waits as a row until it is due.

    Attributes:
        tier: number of the wait, from 1; the first three have a copy in `.retry-1` and so on.
        delay: seconds that it waits.
        due: earliest time of the next attempt in epoch seconds; round it up, never down.
    """

    tier: int
    delay: float
    due: float


@dataclass(frozen=True, slots=True)
class PutOff:
    """Try again later without counting the attempt, because a dependency seems to be down (docs/adr/0016).

    Attributes:
        delay: seconds that it waits.
        due: earliest time of the next attempt in epoch seconds.
    """

    delay: float
    due: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Dead-letter the message: its error is not retried, or it is out of attempts."""

    reason: Literal["permanent", "unknown", "exhausted"]


@dataclass(frozen=True, slots=True)
class Expired:
    """The message's deadline passes before its next attempt, so it expires. Commands get a reply now."""


Decision = TryAgain | Later | PutOff | GiveUp | Expired


def classify(error: BaseException, policy: RetryPolicy) -> FailureKind:
    """The kind of an error, which decides on the next attempt.

    The policy's own classes come before the defaults, which are TransientError and OSError (connections and
    timeouts are among them) on one side, PermanentError on the other. Of two classes that fit, the one
    nearer to the error's own class decides.
    """
    return (
        _nearest(error, policy.transient, policy.permanent)
        or _nearest(error, (TransientError, OSError), (PermanentError,))
        or FailureKind.UNKNOWN
    )


def _nearest(
    error: BaseException,
    transient: tuple[type[BaseException], ...],
    permanent: tuple[type[BaseException], ...],
) -> FailureKind | None:
    for cls in type(error).__mro__:
        if cls in transient:
            return FailureKind.TRANSIENT
        if cls in permanent:
            return FailureKind.PERMANENT
    return None


def decide(
    kind: FailureKind,
    attempt: int,
    *,
    policy: RetryPolicy,
    now: float,
    deadline: float | None = None,
    away: float | None = None,
) -> Decision:
    """Decide on a message whose `attempt`-th attempt has failed, counted from 1.

    `now` and `deadline` in epoch seconds; None: the message does not expire. At its deadline itself a message
    is still of use. `away`, in seconds: nothing of the handler has succeeded since the attempt before this
    one, so no late try is spent on a transient error; it is repeated after so long, or sooner where a late
    try is never that far off. Raises ValueError for an attempt below 1.
    """
    if attempt < 1:
        raise ValueError(f"attempt {attempt}: the attempt that has failed counts too, so give 1 or more")
    if kind is FailureKind.PERMANENT:
        return GiveUp("permanent")
    if kind is FailureKind.UNKNOWN and policy.unknown_is_permanent:
        return GiveUp("unknown")
    if (
        away is not None
        and kind is FailureKind.TRANSIENT
        and policy.delays
        and attempt > policy.immediate + 1
    ):
        delay = min(away, max(policy.delays))
        return Expired() if deadline is not None and deadline < now + delay else PutOff(delay, now + delay)
    if attempt >= policy.max_attempts:
        return GiveUp("exhausted")
    tier = max(0, attempt - policy.immediate)  # 0: still in the lane
    delay = policy.delays[tier - 1] if tier else 0.0
    due = now + delay
    if deadline is not None and deadline < due:
        return Expired()
    return Later(tier, delay, due) if tier else TryAgain()


def longest_wait(policy: RetryPolicy) -> float:
    """The longest delay of a delayed retry, in seconds; 0 if the policy has none."""
    return max(policy.delays, default=0.0)


def longest_path(policy: RetryPolicy) -> float:
    """The sum of all retry delays in seconds, for `inbox.check_retention`.

    Waiting for an outage, an open breaker, a pause or an earlier message of the key is not included, because
    it has no bound here.
    """
    return sum(policy.delays)
