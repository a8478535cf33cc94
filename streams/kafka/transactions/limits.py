"""Limits of topics that brokers have refused a batch for, which every lane of a worker learns from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

#: A limit that is so old is read again, in seconds: an operator may have raised it.
ASKED_AGAIN = 60.0
#: The same where the broker does not tell limits: it is doubled then, and a refusal halves it.
TRIED_AGAIN = 600.0


class BatchLimits:
    """By topic how many bytes a batch may have, where that is less than a producer would make."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: By topic the limit, and when to read it again.
        self._known: dict[str, tuple[int, float]] = {}

    def of(self, topic: str, most: int) -> int:
        """How many bytes a batch may have, `most` where nothing is known."""
        known = self._known.get(topic)
        return most if known is None else min(known[0], most)

    def refused(self, topic: str, size: int, answer: int | None) -> int:
        """Record that a batch of a size was refused; `answer` is the topic's limit, 0 or None where the
        broker does not tell it. Returns the limit that holds from now on.
        """
        # A batch may also be over the bound on a segment, which brokers do not tell.
        limit = answer if answer and answer < size else size // 2
        self._known[topic] = (limit, self._now() + (ASKED_AGAIN if limit == answer else TRIED_AGAIN))
        return limit

    def due(self, topics: Iterable[str]) -> list[str]:
        """The topics whose limit is to be read again."""
        now = self._now()
        return [topic for topic in topics if topic in self._known and self._known[topic][1] <= now]

    def learned(self, topic: str, answer: int | None, most: int) -> None:
        """Take the answer to that: 0 where brokers do not tell limits, None where there was none. At `most`
        there is nothing to know any more.
        """
        before, _ = self._known[topic]
        limit = before if answer is None else answer or before * 2
        if limit >= most:
            del self._known[topic]
        else:
            self._known[topic] = (limit, self._now() + (TRIED_AGAIN if answer == 0 else ASKED_AGAIN))
