"""How long an outbound call is tried: full jitter, bounded in total. A value, decided without a clock."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retries:
    """When to ask again, in seconds.

    Attributes:
        attempt: the longest one attempt may take, unless it is the only one.
        total: the longest all attempts and the waits between them may take.
        base: the first wait is between nothing and this.
        factor: each further wait may be this much longer,
        cap: up to this.
        most: attempts of a call at most; 0: as many as there is time for.
    """

    attempt: float = 1.0
    total: float = 10.0
    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    most: int = 0

    @property
    def longest_attempt(self) -> float:
        """The longest one attempt may take: an only one has all the time that there is."""
        return self.total if self.most == 1 else self.attempt

    def allows(self, attempts: int) -> bool:
        """Whether there may be another after so many."""
        return self.most == 0 or attempts < self.most

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
