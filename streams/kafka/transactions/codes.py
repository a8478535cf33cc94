"""Brokers' error codes, and their meaning for a transaction."""

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

#: First pause in seconds: while the last transaction's markers are being written (a few milliseconds), after
#: other temporary errors, and while a leader or coordinator is elected. Pauses grow, so that waiting clients
#: do not take CPU time from the broker that writes the markers.
_SOON, _LATER, _ELECTION = 0.003, 0.01, 0.05
_LONGER, _LONGEST = 1.5, 0.2


class FencedLeaderEpoch(BrokerResponseError):
    """The leader epoch is outdated: this broker is no longer the leader."""

    errno = 74


class ProducerWasFenced(BrokerResponseError):
    """Another owner has started. aiokafka's error of this name has no code."""

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

#: Another owner has started, or the transaction timed out. InvalidProducerIdMapping means that the producer
#: id has changed as well, which happens when its epochs are used up, after 32,000 transactions.
FENCED = (InvalidProducerEpoch, InvalidProducerIdMapping, ProducerWasFenced)

#: Errors after which the request has to go to another broker.
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
#: Temporary errors. A batch that was written in spite of one can be repeated: leaders check sequence numbers.
_PASSING = _MOVED | {
    each.errno
    for each in (
        ConcurrentTransactions,
        CoordinatorLoadInProgressError,
        NotEnoughReplicasError,
        NotEnoughReplicasAfterAppendError,
        OperationNotAttempted,  # comes only together with another partition's error
    )
}


def error_of(code: int) -> type[BrokerResponseError]:
    """The error class for a code other than 0."""
    found: type[BrokerResponseError] = _FURTHER.get(code) or for_code(code)
    return found


def passes(code: int) -> bool:
    """Whether the same request may succeed later."""
    return code in _PASSING


def moved(codes: Iterable[int]) -> bool:
    """Whether the request has to go to another broker."""
    return not _MOVED.isdisjoint(codes)


def pause(codes: Iterable[int], tries: int) -> float:
    """Seconds to wait before the next request, after `tries` requests that got these codes."""
    codes = set(codes)
    if codes <= {0, ConcurrentTransactions.errno}:
        first = _SOON
    else:
        first = _ELECTION if moved(codes) else _LATER
    return min(first * _LONGER ** min(tries - 1, 12), _LONGEST)
