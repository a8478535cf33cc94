"""How a worker of a queue works, and when it tries again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from streams.errors import SettingsError
from streams.model.policy.bounds import not_a_count, not_seconds


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Times in seconds.

    Attributes:
        batch: jobs that are taken together and done in one transaction at most; 1 for handlers that wait for
            something outside.
        concurrency: batches at the same time; the pool needs as many connections and one more.
        lease: after so long without a sign of its worker a job is another one's; it counts as a failed try.
        tries: after so many failed ones a job is marked as not processed, and stays visible.
        base, cap: a failed job waits for a random time up to `base`, twice that after the next try, and so
            on; `cap` at most.
        poll: how often a worker looks for jobs of which no notification has come, at the least.
    """

    batch: int = 100
    concurrency: int = 4
    lease: float = 30.0
    tries: int = 3
    base: float = 1.0
    cap: float = 60.0
    poll: float = 1.0

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        for name in ("batch", "concurrency", "tries"):
            if wrong := not_a_count(getattr(self, name), 1):
                raise SettingsError(f"queue option {name} {wrong}")
        for name in ("lease", "base", "cap", "poll"):
            may_be_none = name in ("base", "cap") and getattr(self, name) == 0
            if not may_be_none and (wrong := not_seconds(getattr(self, name))):
                raise SettingsError(f"queue option {name} {wrong}")

    def pause(self, retry: int) -> float:
        """How long a job waits that has failed, and had failed so many times before: full jitter."""
        return random.uniform(0, min(self.cap, self.base * 2 ** min(retry, 30)))
