"""aiokafka's log lines, each once in a while: a broker that is down makes hundreds of them a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

from aiokafka import client
from aiokafka.consumer import fetcher, group_coordinator
from aiokafka.errors import NotEnoughReplicasError
from aiokafka.producer import sender

#: Between lines that say the same, in seconds.
INTERVAL = 10.0
#: Between lines about missing replicas, in seconds.
REPLICAS_INTERVAL = 60.0
_MOST = 1000


class Throttled(logging.Filter):
    """Lets a line through, and those alike only after `interval` seconds."""

    def __init__(self, interval: float, alike: Callable[[logging.LogRecord], Hashable | None]) -> None:
        """`alike` tells which lines are; None: this line is like no other."""
        super().__init__()
        self._interval = interval
        self._alike = alike
        self._quiet_until: dict[Hashable, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        key = self._alike(record)
        if key is None:
            return True
        now = time.monotonic()
        if now < self._quiet_until.get(key, 0.0):
            return False
        if len(self._quiet_until) >= _MOST:
            self._quiet_until.clear()
        self._quiet_until[key] = now + self._interval
        return True


def _text(record: logging.LogRecord) -> str:
    return record.getMessage()


def _not_enough_replicas(record: logging.LogRecord) -> str | None:
    """It comes with many a transaction, while the broker verifies a partition, once for each partition. Only
    one that does not go away tells of replicas that are really missing.
    """
    known = isinstance(record.args, tuple) and NotEnoughReplicasError in record.args
    return "not enough replicas" if known else None


def throttle_logs() -> None:
    """Filter the loggers of aiokafka's clients."""
    sender.log.addFilter(Throttled(REPLICAS_INTERVAL, _not_enough_replicas))
    for module in (client, fetcher, group_coordinator, sender):
        module.log.addFilter(Throttled(INTERVAL, _text))
