"""Meaning of a broker's refusal: it passes when an operator mends the cause, or one record is at fault.

Errors that are not here are those of a cluster that is about to elect, restart or move something, or are not
known: the lane opens again soon, without a word about what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aiokafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    CorruptRecordException,
    GroupAuthorizationFailedError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionTimeout,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from streams.errors import ClockWrong, RecordRefused, Refused
from streams.kafka.transactions.questions import LIMIT
from streams.ports import TP

#: A difference of clocks below this is none that a broker would refuse records for, in seconds.
_NO_DIFFERENCE = 60.0
#: Characters of what a broker says that are passed on.
_SAID = 200


class InvalidRecord(BrokerResponseError):
    """The broker does not take a record for what it is, such as one without key in a compacted topic."""

    errno = 87


class ThrottlingQuotaExceeded(BrokerResponseError):
    """A quota of the cluster is used up."""

    errno = 89


class _Mend(NamedTuple):
    """The cause of a refusal, and what an operator has to do."""

    what: str
    advice: str


_MAY_NOT = "grant the right to this worker's user again"
#: What has nothing to do with the messages: it is waited out.
_WAITED: Mapping[type[BaseException], _Mend] = {
    InvalidTimestampError: _Mend(
        "the brokers refuse the timestamps of this machine's records",
        "compare this machine's clock with theirs",
    ),
    TopicAuthorizationFailedError: _Mend("this worker may not write to a topic", _MAY_NOT),
    GroupAuthorizationFailedError: _Mend("this worker may not commit its group's positions", _MAY_NOT),
    TransactionalIdAuthorizationFailed: _Mend("this worker may not use its transactional id", _MAY_NOT),
    ClusterAuthorizationFailedError: _Mend("this worker may not write to this cluster", _MAY_NOT),
    PolicyViolationError: _Mend("a policy of the brokers refuses the transaction", "see the brokers' log"),
    InvalidTopicError: _Mend(
        "the brokers refuse a topic's name, or refuse records for it from clients", "see their log"
    ),
    CorruptRecordException: _Mend("records arrived at a broker damaged", "check the network to it"),
    InvalidTransactionTimeout: _Mend(
        "the brokers refuse the time that a transaction may take", "raise their transaction.max.timeout.ms"
    ),
    ThrottlingQuotaExceeded: _Mend("a quota of the cluster is used up", "raise it, or wait"),
}
#: A batch is larger than its topic takes.
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
#: What the broker says about a record: it is the same when its message is handled again.
_AT_FAULT = (*TOO_LARGE, InvalidRecord)


def refusal_of(error: BaseException, during: str) -> Refused | RecordRefused | None:
    """The error of a lane for that of a broker; None: it is no refusal. `during` says what was tried."""
    for kind, mend in _WAITED.items():
        if isinstance(error, kind):
            made = ClockWrong if kind is InvalidTimestampError else Refused
            return made(f"{mend.what}: {mend.advice} ({during}: {error!r})")
    if isinstance(error, _AT_FAULT):
        return RecordRefused(f"the broker refuses a record ({during}: {error!r})")
    return None


def too_large(tp: TP, size: int, records: int, limit: int) -> Refused | RecordRefused:
    """A batch of so many records has more bytes than the topic's limit. Only one alone is at fault."""
    where = f"{tp.topic}[{tp.partition}]"
    what = f"a batch of {size} bytes for {where}, whose {LIMIT} is {limit} (MessageSizeTooLarge)"
    if records > 1:
        return Refused(f"the broker refuses {what}: its {records} records are sent again in smaller batches")
    return RecordRefused(f"the broker refuses {what}", limit=limit, topic=tp.topic)


def clock_wrong(ahead: float | None, tp: TP, text: str) -> ClockWrong:
    """Records of a time that cannot be. `ahead` in seconds: this machine's clock against the broker's."""
    where, text = f"{tp.topic}[{tp.partition}]", text[:_SAID]  # it names each record
    if ahead is None:
        mend = _WAITED[InvalidTimestampError]
        return ClockWrong(f"{mend.what}: {mend.advice} ({where}: {text})")
    if abs(ahead) < _NO_DIFFERENCE:
        return ClockWrong(
            f"{where} refuses the time of records, though the clocks agree: see the topic's"
            f" message.timestamp.before.max.ms and .after.max.ms ({text})",
            ahead=ahead,
        )
    way = "ahead of" if ahead > 0 else "behind"
    return ClockWrong(
        f"this machine's clock is {abs(ahead):,.0f} s {way} the broker's, which refuses its records: set the"
        f" clock, and let a time service keep it ({where}: {text})",
        ahead=ahead,
    )
