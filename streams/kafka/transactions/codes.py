"""The codes of brokers' errors, and their meaning for a transaction."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    KafkaStorageError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OperationNotAttempted,
    UnknownTopicOrPartitionError,
    for_code,
)

from streams.kafka.transactions.refusals import InvalidRecord, ThrottlingQuotaExceeded

#: Seconds until the next request while the markers of the transaction before are still written, a few
#: milliseconds; while anything else passes; and while a leader or coordinator is elected. Each further time
#: takes longer, so that who waits does not take the processor from the broker that is to write the markers.
_SOON, _LATER, _ELECTION = 0.003, 0.01, 0.05
_LONGER, _LONGEST = 1.5, 0.2


class FencedLeaderEpoch(BrokerResponseError):
    """Of leaders: this broker is not the leader any more."""

    errno = 74


class ProducerWasFenced(BrokerResponseError):
    """Another owner has started; aiokafka's error of the name has no code."""

    errno = 90


class TransactionAbortable(BrokerResponseError):
    """The transaction can only be aborted."""

    errno = 120


_FURTHER = {
    each.errno: each
    for each in (
        FencedLeaderEpoch,
        InvalidRecord,
        ProducerWasFenced,
        ThrottlingQuotaExceeded,
        TransactionAbortable,
    )
}

#: Another owner has started, or the transaction timed out. The mapping: since then producer ids have changed
#: too, as they do when epochs are used up, after 32,000 transactions.
FENCED = (InvalidProducerEpoch, InvalidProducerIdMapping, ProducerWasFenced)

#: The request went to the wrong broker.
_MOVED = {
    each.errno
    for each in (
        UnknownTopicOrPartitionError,
        LeaderNotAvailableError,
        NotLeaderForPartitionError,
        CoordinatorNotAvailableError,
        NotCoordinatorError,
        KafkaStorageError,
        FencedLeaderEpoch,
    )
}
#: What passes. Also where a batch was written nevertheless: a leader knows it by its sequence number.
_PASSING = _MOVED | {
    each.errno
    for each in (
        ConcurrentTransactions,
        CoordinatorLoadInProgressError,
        NotEnoughReplicasError,
        NotEnoughReplicasAfterAppendError,
        OperationNotAttempted,  # in the company of another
    )
}


def error_of(code: int) -> type[BrokerResponseError]:
    """The error of a code, other than 0."""
    found: type[BrokerResponseError] = _FURTHER.get(code) or for_code(code)
    return found


def passes(code: int) -> bool:
    """Whether the same request may succeed later."""
    return code in _PASSING


def moved(codes: Iterable[int]) -> bool:
    """Whether the request has to go to another broker."""
    return not _MOVED.isdisjoint(codes)


def pause(codes: Iterable[int], tries: int) -> float:
    """After how many seconds to ask again, after so many tries."""
    codes = set(codes)
    if codes <= {0, ConcurrentTransactions.errno}:
        first = _SOON
    else:
        first = _ELECTION if moved(codes) else _LATER
    return min(first * _LONGER ** min(tries - 1, 12), _LONGEST)
