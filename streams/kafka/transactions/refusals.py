"""Explains a broker's refusal: either an operator has to fix the cause, or one record is at fault.

All other errors are unknown, or come from a cluster that elects, restarts or moves something. After those,
the lane opens again soon, without advice for an operator.
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

#: Brokers do not refuse records for a clock difference below this, in seconds.
_NO_DIFFERENCE = 60.0
#: Maximum characters of a broker's error message that are passed on.
_SAID = 200


class InvalidRecord(BrokerResponseError):
    """The broker refuses a record because of its contents, such as one without a key in a compacted topic."""

    errno = 87


class ThrottlingQuotaExceeded(BrokerResponseError):
    """A quota of the cluster is used up."""

    errno = 89


class _Mend(NamedTuple):
    """The cause of a refusal, and what an operator should do."""

    what: str
    advice: str


_MAY_NOT = "grant the right to this worker's user again"
#: Errors that have nothing to do with the messages. The lane waits until the cause is fixed.
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
#: A batch is larger than its topic allows.
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
#: Errors that a record causes. Handling its message again would give the same error.
_AT_FAULT = (*TOO_LARGE, InvalidRecord)


def refusal_of(error: BaseException, during: str) -> Refused | RecordRefused | None:
    """The lane's error for a broker's error; None if it is not a refusal. `during` states the failed step."""
    for kind, mend in _WAITED.items():
        if isinstance(error, kind):
            made = ClockWrong if kind is InvalidTimestampError else Refused
            return made(f"{mend.what}: {mend.advice} ({during}: {error!r})")
    if isinstance(error, _AT_FAULT):
        return RecordRefused(f"the broker refuses a record ({during}: {error!r})")
    return None


def too_large(tp: TP, size: int, records: int, limit: int) -> Refused | RecordRefused:
    """The error for a batch over the topic's limit. A record is at fault only if it is alone in the batch."""
    where = f"{tp.topic}[{tp.partition}]"
    what = f"a batch of {size} bytes for {where}, whose {LIMIT} is {limit} (MessageSizeTooLarge)"
    if records > 1:
        return Refused(f"the broker refuses {what}: its {records} records are sent again in smaller batches")
    return RecordRefused(f"the broker refuses {what}", limit=limit, topic=tp.topic)


def clock_wrong(ahead: float | None, tp: TP, text: str) -> ClockWrong:
    """The error for records with an invalid timestamp. `ahead` is how many seconds this machine's clock is
    ahead of the broker's; None if unknown.
    """
    where, text = f"{tp.topic}[{tp.partition}]", text[:_SAID]  # the text lists every record
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
