"""How long an outbound call is tried: full jitter, bounded in total. A value, decided without a clock."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retries:
    """When to ask again, in seconds.

    Attributes:
        attempt: the longest one attempt may take.
        total: the longest all attempts and the waits between them may take.
        base: the first wait is between nothing and this.
        factor: each further wait may be this much longer,
        cap: up to this.
    """

    attempt: float = 1.0
    total: float = 10.0
    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0

    def longest_wait(self, failures: int) -> float:
        """The longest wait after so many failures (one or more)."""
        wait = self.base
        for _ in range(failures - 1):
            if wait >= self.cap:
                break
            wait *= self.factor
        return min(wait, self.cap)

    def wait(self, failures: int) -> float:
        """A wait drawn from all of the window: callers that failed together do not come back together."""
        return random.uniform(0.0, self.longest_wait(failures))
