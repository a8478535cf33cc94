"""A request limit for each client address.

Litestar's own limit keeps a list of all requests of the window, and writes it as JSON for each: at a thousand
requests a second that costs more than the requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from litestar import Request

from streams.http.limits import TokenBuckets
from streams.http.problems import problem


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
