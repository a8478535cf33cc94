"""How long an outbound call is tried: full jitter, bounded in total. A value, decided without a clock."""

from __future__ import annotations

from dataclasses import dataclass

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, stop_before_delay
from tenacity.wait import wait_random_exponential

from agents.gateway.errors import Unanswered


@dataclass(frozen=True, slots=True)
class GatewayRetries:
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

    @property
    def waits(self) -> wait_random_exponential:
        """Draws each wait from all of its window: callers that failed together do not come back together."""
        return wait_random_exponential(multiplier=self.base, exp_base=self.factor, max=self.cap)

    def retrying(self) -> AsyncRetrying:
        """Asks again after Unanswered, and raises the last one; one call at a time, so copy it for each."""
        out_of_time = stop_before_delay(self.total)
        return AsyncRetrying(
            retry=retry_if_exception_type(Unanswered),
            wait=self.waits,
            stop=out_of_time | stop_after_attempt(self.most) if self.most else out_of_time,
            reraise=True,
        )
