"""Measurements of a lane for its metrics: taken at each commit, and when metrics are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter

from streams.engine.staging.measures import Distribution
from streams.engine.waiting.dead_letters.bursts import Bursts
from streams.engine.way.held_up import HeldUpPartitions
from streams.engine.way.intake import Intake
from streams.engine.way.topics import TopicStanding

#: Bounds for the messages of one transaction.
BATCHES = (1.0, 5.0, 20.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0)
#: Bounds for the seconds of one transaction, from its beginning until Kafka has committed it.
COMMITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: This many fences or reopenings within this many seconds are a warning. A rebalance costs a lane one fence.
OFTEN, OFTEN_WITHIN = 3, 60.0


class LaneMeasures:
    """Measurements of one lane, for as long as this worker has it.

    Attributes:
        batches: messages of each transaction.
        commits: seconds that each took.
        to_recover: changelog records, including markers, that an opening lane has still to read.
        recovery: how many it had to read in all, and when it began, by the monotonic clock.
        in_transaction: whether a transaction is under way.
        bursts: dead letters that came in bursts.
        intake: the lane's intake; None while it is not open.
        fenced_at: when another owner has fenced it, the last three times, in epoch seconds.
        reopened_at: when it had to open again, the last three times, in epoch seconds.
        topics: what is wrong with its topics.
        refused_timers: by timer name, why the broker refuses its message; the timer is postponed.
        held_up: partitions blocked by another client's open transaction; None while it is not open.
    """

    def __init__(self) -> None:
        self.batches = Distribution(BATCHES)
        self.commits = Distribution(COMMITS)
        self.to_recover = 0
        self.recovery = (0, 0.0)
        self.in_transaction = False
        self.bursts = Bursts()
        self.intake: Intake | None = None
        self.held_up: HeldUpPartitions | None = None
        self.fenced_at: deque[float] = deque(maxlen=OFTEN)
        self.reopened_at: deque[float] = deque(maxlen=OFTEN)
        self.topics = TopicStanding()
        self.refused_timers: dict[bytes, str] = {}

    @contextmanager
    def transaction(self, messages: int) -> Iterator[None]:
        """Measure a transaction of so many messages. One that fails is not counted."""
        began = perf_counter()
        self.in_transaction = True
        try:
            yield
        finally:
            self.in_transaction = False
        self.batches.add(messages)
        self.commits.add(perf_counter() - began)

    def recovering(self, records: int) -> None:
        """Record how many changelog records are still to be read."""
        if records > self.to_recover:  # a recovery begins, or begins again
            self.recovery = (records, monotonic())
        self.to_recover = records

    @property
    def lag(self) -> int | None:
        """Messages that the lane has not committed, by the last known ends of its topics. Markers count until
        they are read. None while the lane is not open.
        """
        return None if self.intake is None else self.intake.lag

    def fenced_often(self, now: float) -> bool:
        """Whether it was fenced three times in the last minute: another worker opens it again and again."""
        return _often(self.fenced_at, now)

    def reopened_often(self, now: float) -> bool:
        """Whether it had to open again three times in the last minute."""
        return _often(self.reopened_at, now)

    def held_up_for(self) -> float:
        """The longest time for which another client's transaction has blocked a partition, in seconds."""
        return 0.0 if self.held_up is None else self.held_up.longest()

    def oldest_age(self, now: float) -> float | None:
        """Age in seconds of the oldest message that the lane has read and not committed; 0 if there is none,
        None while the lane is not open.
        """
        if self.intake is None:
            return None
        oldest = self.intake.oldest
        return 0.0 if oldest is None else max(0.0, now - oldest / 1000)


def _often(times: deque[float], now: float) -> bool:
    return len(times) == OFTEN and now - times[0] < OFTEN_WITHIN
