"""How many requests a client may make: a token bucket for each address.

Litestar's own limit keeps a list of all requests of the window, and writes it as JSON for each: at a thousand
requests a second that costs more than the requests.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from litestar import Request

from streams.http.problems import problem

#: Addresses that are kept; the one without a request for longest is dropped first, as if it were full.
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


class RateLimit:
    """Litestar's `before_request`: lets through `rate` requests a second, and `burst` at once. 0: all.

    Raises a problem 429 for the others, with the seconds to wait in `Retry-After`.
    """

    def __init__(self, rate: float, burst: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._buckets = TokenBuckets(rate, float(burst or math.ceil(rate)), clock)

    async def __call__(self, request: Request[Any, Any, Any]) -> None:
        """Count a request."""
        if self._rate:
            wait = self.take(request.client.host if request.client else "")
            if wait:
                raise problem(
                    429,
                    "too-many-requests",
                    f"{self._rate:g} requests per second is the limit for one client",
                    headers={"Retry-After": str(math.ceil(wait))},
                )

    def take(self, client: str) -> float:
        """Take a token; returns 0, or in how many seconds there is one."""
        return self._buckets.take(client)
