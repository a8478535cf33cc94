"""Token buckets by name: how often somebody may do something."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

#: Names that are kept; the one not asked for longest is dropped first, as if its bucket were full.
_MOST = 10_000


class TokenBuckets:
    """A bucket of tokens for each name: `burst` of them at first, and `rate` more a second up to that."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, name: str) -> float:
        """0 where there is a token; else in how many seconds there is one. Nothing is taken."""
        tokens = self._tokens(name, self._clock())
        return 0.0 if tokens >= 1 else (1 - tokens) / self._rate

    def take(self, name: str) -> float:
        """Take a token; returns 0, or in how many seconds there is one."""
        now, wait = self._clock(), self.wait(name)
        tokens = self._tokens(name, now)
        self._buckets[name] = (tokens if wait else tokens - 1), now
        self._buckets.move_to_end(name)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        return wait

    def _tokens(self, name: str, now: float) -> float:
        tokens, since = self._buckets.get(name, (self._burst, now))
        return min(self._burst, tokens + (now - since) * self._rate)
