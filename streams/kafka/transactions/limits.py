"""Batch size limits of topics, learned when a broker refuses a batch and shared by all lanes of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

#: Seconds after which a limit is read again, because an operator may have raised it.
ASKED_AGAIN = 60.0
#: The same if the broker does not report limits: the limit doubles then, and a refusal halves it.
TRIED_AGAIN = 600.0


class BatchLimits:
    """The largest batch in bytes for each topic that takes less than a producer would send."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: The limit of each topic, and when to read it again.
        self._known: dict[str, tuple[int, float]] = {}

    def of(self, topic: str, most: int) -> int:
        """The largest batch in bytes for a topic; `most` if no smaller limit is known."""
        known = self._known.get(topic)
        return most if known is None else min(known[0], most)

    def refused(self, topic: str, size: int, answer: int | None) -> int:
        """Record that a batch of `size` bytes was refused. `answer` is the topic's limit; 0 or None if the
        broker did not report it. Returns the limit that applies from now on.
        """
        # A batch may also exceed the segment size, which is not in the answer.
        limit = answer if answer and answer < size else size // 2
        self._known[topic] = (limit, self._now() + (ASKED_AGAIN if limit == answer else TRIED_AGAIN))
        return limit

    def due(self, topics: Iterable[str]) -> list[str]:
        """The topics whose limit must be read again."""
        now = self._now()
        return [topic for topic in topics if topic in self._known and self._known[topic][1] <= now]

    def learned(self, topic: str, answer: int | None, most: int) -> None:
        """Record a limit that was read again: 0 if brokers do not report limits, None if no answer came. The
        topic is forgotten once its limit reaches `most`.
        """
        before, _ = self._known[topic]
        limit = before if answer is None else answer or before * 2
        if limit >= most:
            del self._known[topic]
        else:
            self._known[topic] = (limit, self._now() + (TRIED_AGAIN if answer == 0 else ASKED_AGAIN))
