"""Circuit breaker of one handler in one lane. No I/O.

A closed breaker allows calls and measures their failure rate. An open one allows none, so that messages wait
instead of becoming dead letters. A half-open one allows a few probes, whose results close or reopen it.

A call is one attempt of the handler. It counts as failed if its error is transient or unknown
(`retry.FailureKind`). A permanent error or a business refusal counts as a success, because it shows that the
dependency works. An error in the data (`errors.DataError`) is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from streams.errors import SettingsError
from streams.model.policy.bounds import not_a_count, not_seconds

#: What `acquire` hands out for one call, and `record` takes back.
Permit = NewType("Permit", int)
#: The permit of an attempt that did not ask the breaker, because it was closed.
NO_PERMIT = Permit(0)

#: Buckets of a sliding window, as Hystrix has: calls leave it a tenth of its length at a time.
BUCKETS = 10


class BreakerState(StrEnum):
    """Whether a breaker allows calls: all, none, or a few probes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens, and for how long. Times are in seconds. Raises SettingsError for wrong values.

    Sources of the defaults: failure_rate and minimum are those of Hystrix (and the rate of resilience4j),
    window is Polly's sampling duration, max_open_for is resilience4j's wait in the open state, and open_for
    equals the first retry delay. The values for probes are our own.

    Attributes:
        window: length of the sliding window over which the failure rate is measured.
        minimum: minimum number of calls in the window for the breaker to open.
        failure_rate: fraction of failed calls in the window from which on the breaker opens.
        open_for: how long it stays open the first time; doubled each time that a probe fails.
        max_open_for: maximum time that it stays open.
        probes: maximum concurrent calls while half-open, and the number that must succeed to close it.
        probe_timeout: time after which a probe without a result counts as lost and another is allowed, such
            as when its batch was dropped. It must be longer than the handler takes.
    """

    window: float = 30.0
    minimum: int = 20
    failure_rate: float = 0.5
    open_for: float = 10.0
    max_open_for: float = 60.0
    probes: int = 3
    probe_timeout: float = 60.0

    def __post_init__(self) -> None:
        for name in ("window", "open_for", "max_open_for", "probe_timeout"):
            if wrong := not_seconds(getattr(self, name)):
                raise SettingsError(f"{name} of a breaker {wrong}")
        for name in ("minimum", "probes"):
            if wrong := not_a_count(getattr(self, name), 1):
                raise SettingsError(f"{name} of a breaker {wrong}")
        if not 0 < self.failure_rate <= 1:
            raise SettingsError(f"failure_rate of {self.failure_rate}: give a fraction such as 0.5")
        if self.max_open_for < self.open_for:
            raise SettingsError(
                f"max_open_for of {self.max_open_for:g} s is under open_for ({self.open_for:g} s): raise it"
            )


@dataclass(frozen=True, slots=True)
class BreakerTransition:
    """A change of a breaker's state.

    Attributes:
        at: epoch seconds.
        calls: calls that decided it: those in the window if it was closed, probes if it was half-open.
        failures: number of failed calls among them.
    """

    before: BreakerState
    after: BreakerState
    at: float
    calls: int = 0
    failures: int = 0


class Breaker:
    """Circuit breaker of a handler: admits each attempt, and records its result. Begins closed.

    `now` is in epoch seconds everywhere. If the clock is set back by more than the window, the current wait
    and the measurement start over.

    Attributes:
        state: closed, open or half-open; open becomes half-open with the first probe.
        since: when it stopped being closed, in epoch seconds; 0 while it is closed.
    """

    def __init__(
        self, policy: BreakerPolicy, on_transition: Callable[[BreakerTransition], None] | None = None
    ) -> None:
        """`on_transition` is called after each change of state, for logs and metrics."""
        self.policy = policy
        self.state = BreakerState.CLOSED
        self.since = 0.0
        self._on_transition = on_transition
        self._window = _Window(policy.window)
        self._wait = policy.open_for  # how long it stays open the next time
        self._opened_for = 0.0
        self._open_until = 0.0
        self._probes: dict[Permit, float] = {}  # probes in progress, and when each counts as lost
        self._succeeded = 0
        self._last = Permit(0)
        self._earlier = Permit(0)  # permits up to this one belong to an earlier state
        self._latest = 0.0

    @property
    def allowed_from(self) -> float:
        """Epoch seconds before which no call is allowed, unless a probe ends sooner; 0: allowed now."""
        if self.state is BreakerState.OPEN:
            return self._open_until
        if len(self._probes) >= self.policy.probes:
            return min(self._probes.values())
        return 0.0

    def start_half_open(self, now: float) -> None:
        """Become half-open, for a lane that opens with waiting messages. Earlier calls are ignored."""
        self._become(BreakerState.HALF_OPEN, self._at(now))

    def acquire(self, now: float) -> Permit | None:
        """Ask for permission for one call. None if no call is allowed now, so that the message waits."""
        now = self._at(now)
        if self.state is BreakerState.OPEN:
            if now < self._open_until:
                return None
            self._become(BreakerState.HALF_OPEN, now)
        if self.state is BreakerState.HALF_OPEN:
            self._probes = {permit: lost for permit, lost in self._probes.items() if now < lost}
            if len(self._probes) >= self.policy.probes:
                return None
        self._last = Permit(self._last + 1)
        if self.state is BreakerState.HALF_OPEN:
            self._probes[self._last] = now + self.policy.probe_timeout
        return self._last

    def give_back(self, permit: Permit) -> None:
        """Return the permit of a call that was not made, so that another call can use it."""
        self._probes.pop(permit, None)

    def succeeded(self, calls: int, *, now: float) -> None:
        """Record successful calls that took no permits while the breaker was closed, for busy handlers."""
        now = self._at(now)
        if self.state is BreakerState.CLOSED and calls:
            self._window.add(ok=True, now=now, calls=calls)

    def record(self, permit: Permit, *, ok: bool, now: float) -> None:
        """Record the result of a call, once. Calls that began in an earlier state are ignored."""
        now = self._at(now)
        if permit <= self._earlier:
            return
        if self.state is BreakerState.CLOSED:
            self._window.add(ok=ok, now=now)
            if self._window.calls >= self.policy.minimum and self._window.rate >= self.policy.failure_rate:
                self._become(BreakerState.OPEN, now, self._window.calls, self._window.failures)
            return
        self._probes.pop(permit, None)
        if not ok:
            self._become(BreakerState.OPEN, now, self._succeeded + 1, 1)
            return
        self._wait = self.policy.open_for
        self._succeeded += 1
        if self._succeeded >= self.policy.probes:
            self._become(BreakerState.CLOSED, now, self._succeeded)

    def _become(self, state: BreakerState, now: float, calls: int = 0, failures: int = 0) -> None:
        before, self.state = self.state, state
        if state is BreakerState.CLOSED:
            self.since = 0.0
        elif before is BreakerState.CLOSED:
            self.since = now
        self._earlier = self._last
        self._window = _Window(self.policy.window)
        self._probes = {}
        self._succeeded = 0
        if state is BreakerState.OPEN:
            self._opened_for = self._wait
            self._open_until = now + self._wait
            self._wait = min(self._wait * 2, self.policy.max_open_for)
        if self._on_transition is not None and before is not state:
            self._on_transition(BreakerTransition(before, state, now, calls, failures))

    def _at(self, now: float) -> float:
        # Callers read the clock at different moments, so a slightly earlier time is not a changed clock.
        if now < self._latest - self.policy.window:
            self._open_until = min(self._open_until, now + self._opened_for)
            self._probes = dict.fromkeys(self._probes, now + self.policy.probe_timeout)
            self._window = _Window(self.policy.window)
            self._latest = now
        self._latest = max(self._latest, now)
        return self._latest


class _Window:
    """Calls within the window, counted in buckets, so that memory does not grow with the number of calls."""

    def __init__(self, length: float) -> None:
        self._width = length / BUCKETS
        self._buckets = [[0, 0] for _ in range(BUCKETS)]  # calls, failures
        self._newest = 0
        self.calls = 0
        self.failures = 0

    @property
    def rate(self) -> float:
        """Fraction of failed calls. Needs at least one call."""
        return self.failures / self.calls

    def add(self, *, ok: bool, now: float, calls: int = 1) -> None:
        """Count calls with the same result. `now` must not decrease."""
        newest = int(now // self._width)
        for passed in range(min(newest - self._newest, BUCKETS)):
            bucket = self._buckets[(newest - passed) % BUCKETS]
            self.calls -= bucket[0]
            self.failures -= bucket[1]
            bucket[:] = 0, 0
        self._newest = newest
        bucket = self._buckets[newest % BUCKETS]
        failures = 0 if ok else calls
        bucket[0] += calls
        bucket[1] += failures
        self.calls += calls
        self.failures += failures
