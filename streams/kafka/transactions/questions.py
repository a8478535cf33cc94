"""Requests that find out why a broker has refused a transaction, for the text of the error."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from streams.kafka.wire import CLASSIC, FLEXIBLE, ResponseReader, VersionedRequest

_DESCRIBE_CONFIGS, _DESCRIBE_TRANSACTIONS = 32, 65
_TOPIC = 2
_CODE, _KIND = struct.Struct(">h"), struct.Struct(">b")
_TIMES, _ENTRY = struct.Struct(">iq"), struct.Struct(">?b?")
LIMIT = "max.message.bytes"


class Started(NamedTuple):
    """Error code, and the start of an id's last transaction, in epoch milliseconds of the coordinator."""

    code: int
    at_ms: int

    @property
    def codes(self) -> Iterable[int]:
        """The codes of all errors in the answer; 0: none."""
        return (self.code,)


def describe_transaction(transactional_id: str) -> VersionedRequest:
    """Asks the coordinator about an id. The answer is a `Started`."""
    parts = (FLEXIBLE.count(1), FLEXIBLE.string(transactional_id), FLEXIBLE.tags)
    return VersionedRequest((_DESCRIBE_TRANSACTIONS, 0), FLEXIBLE, parts, _started)


def _started(answer: ResponseReader) -> Started:
    answer.throttle()
    answer.count()
    (code,) = answer.take(_CODE)
    answer.string()
    answer.string()
    _, at_ms = answer.take(_TIMES)
    return Started(code, at_ms)


def describe_limit(topic: str) -> VersionedRequest:
    """Asks any broker for the largest batch that a topic accepts. The answer is in bytes; 0 if the broker
    does not report it.
    """
    name = (_KIND.pack(_TOPIC), CLASSIC.string(topic))
    parts = (CLASSIC.count(1), *name, CLASSIC.count(1), CLASSIC.string(LIMIT), b"\0")
    return VersionedRequest((_DESCRIBE_CONFIGS, 1), CLASSIC, parts, _limit)


def _limit(answer: ResponseReader) -> int:
    answer.throttle()
    found = 0
    for _ in range(answer.count()):
        answer.take(_CODE)
        answer.string()
        answer.take(_KIND)
        answer.string()
        for _ in range(answer.count()):
            name, value = answer.string(), answer.string()
            answer.take(_ENTRY)
            for _ in range(answer.count()):  # synonyms: other places where the value is set
                answer.string()
                answer.string()
                answer.take(_KIND)
            if name == LIMIT:
                found = int(value)
    return found
