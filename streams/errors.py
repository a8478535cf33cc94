"""Errors of the library. Their texts say what happened, to what, and what to do."""

from __future__ import annotations

import opcode
import signal
from collections.abc import Iterable, Sequence
from traceback import walk_tb
from types import CodeType
from typing import NamedTuple


class SteadfaustError(Exception):
    """Base class of errors that a user can act on. The text says what happened, to what, and what to do."""


class SettingsError(SteadfaustError):
    """A setting is missing or wrong, or two of them contradict each other. The application does not start."""


class MissingExtra(SteadfaustError, ImportError):
    """An optional dependency is not installed. The text names the extra that installs it."""


def missing_extra(extra: str, part: str, error: ModuleNotFoundError) -> ImportError:
    """The MissingExtra to raise for a failed import, or `error` itself if the missing module is our own."""
    if (error.name or "").partition(".")[0] == "streams":
        return error
    return MissingExtra(f"{part} need {error.name}: pip install 'steadfaust[{extra}]'")


class WiringError(SteadfaustError):
    """A handler, choreography or saga is declared wrongly. Raised at import or at the start of a worker."""


class TopicMismatch(SteadfaustError):
    """A topic in the cluster differs from its declaration. The application does not start."""


class LayoutMismatch(SteadfaustError):
    """Workers of one group have different partitions or lane counts, or have no topic in common."""


class ReshardRefused(SteadfaustError):
    """An application cannot be resharded in its present state. The text says what prevents it."""


class MembershipLost(SteadfaustError):
    """The worker can no longer be a member of its group. It stops, and other workers take its lanes."""


class PermanentError(SteadfaustError):
    """A retry of the message cannot succeed. Raised by a handler, it dead-letters the message at once."""


class TransientError(SteadfaustError):
    """Something outside failed and may work later. Raised by a handler, it makes the lane retry."""


class DataError(PermanentError):
    """A message, or the outcome of its handler, is invalid. Circuit breakers do not count it, because it does
    not show that a dependency is down.
    """


class MissingHeader(DataError):
    """A message lacks a required header, such as its id."""


class HeaderTooLong(DataError):
    """A header that lanes store or pass on is too long."""


class KeyMismatch(DataError):
    """The key of the record differs from the key of the message, so handlers would change the wrong rows."""


class Unreadable(DataError):
    """A record or a batch of records is damaged, or violates Kafka's format."""


class Undecodable(DataError):
    """The bytes of a message do not match its schema."""


class Unencodable(DataError):
    """A handler returned a value that does not fit its schema, such as a number of 70 bits, or something that
    it is not declared to return or send.
    """


class RowUnreadable(DataError):
    """A stored row of the message's key cannot be read. The message is dead-lettered; it can be replayed once
    an operator has replaced or deleted the row. Other keys continue.
    """


class TooLarge(DataError):
    """A row or an outgoing message exceeds the size limit. Found before the commit, when it is staged."""


class QueueFull(PermanentError):
    """The queue for this ordering key is full; further messages are dead-lettered."""


class UnknownSchema(SteadfaustError):
    """A message was written with a schema that no worker has announced yet. It waits for up to
    `schema_patience`.

    Attributes:
        fingerprint: fingerprint of the writer's schema, 16 hexadecimal digits.
    """

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(f"schema {fingerprint} has not been announced yet; messages written with it wait")


class NewerSchema(UnknownSchema):
    """A newer version of the application wrote this message, and this version cannot read it, as happens
    during a deploy. It waits for up to `schema_patience` for a worker of the newer version.
    """

    def __init__(self, fingerprint: str, why: str) -> None:
        SteadfaustError.__init__(self, why)
        self.fingerprint = fingerprint


class SchemaNeverAnnounced(PermanentError):
    """The message's schema was not announced within `schema_patience`."""


class MessageExpired(PermanentError):
    """The deadline of a message had passed before it could be handled."""


class NotYet(TransientError):
    """A message needs another version of the application than this worker's, as happens during a deploy. It
    waits. This does not count as a failed attempt, and never makes a dead letter.
    """


class SagaVersionUnknown(NotYet):
    """A saga started with a version of its definition that this worker does not have."""


class SagaStepsChanged(NotYet):
    """A saga started with other steps than its definition has now, although the version is the same."""


class RowSchemaUnknown(NotYet):
    """A row of the message's key was written with a schema that is not announced yet, or that only newer
    workers can read. The message waits for up to `schema_patience`.
    """


class RepairRefused(SteadfaustError):
    """An operation on a saga is not possible in its present state. Nothing was changed."""


class Fenced(SteadfaustError):
    """Another worker has opened the lane, so this owner is a zombie and can no longer commit anything."""


class TransactionFailed(SteadfaustError):
    """A transaction did not commit, as far as its producer knows. The producer is discarded, and the lane
    opens again from Kafka's state. The subclasses say whether the outcome is known.
    """


class OutcomeUnknown(TransactionFailed):
    """The transaction may or may not have committed: the broker's answer is missing or inconclusive."""


class Refused(TransactionFailed):
    """The broker refused the transaction for a reason unrelated to its messages, such as a missing right or a
    wrong clock. Nothing was committed. The same transaction succeeds once an operator has removed the cause,
    with which the text begins.
    """


class ClockWrong(Refused):
    """The broker refused the timestamps of records because this machine's clock and its own differ.

    Attributes:
        ahead: seconds by which this machine's clock is ahead (negative: behind); None if unknown.
    """

    def __init__(self, text: str = "", *, ahead: float | None = None) -> None:
        self.ahead = ahead
        super().__init__(text)


class RecordRefused(TransactionFailed):
    """The broker refused a record because of its content or size. Nothing was committed, and the message that
    produced the record never can be.

    Attributes:
        limit: size limit of the record's topic in bytes if the record is too large; otherwise 0.
        topic: the record's topic; empty if unknown.
    """

    def __init__(self, text: str = "", *, limit: int = 0, topic: str = "") -> None:
        self.limit, self.topic = limit, topic
        super().__init__(text)


class NotCommittable(DataError):
    """The broker refuses a record that the message produces, so its transaction cannot be committed.

    Attributes:
        omit: whether the broker also refused the dead letter, which is then written without the message's
            value.
    """

    def __init__(self, text: str, *, omit: bool = False) -> None:
        self.omit = omit
        super().__init__(text)


class ClusterUnavailable(SteadfaustError):
    """Kafka did not answer in time. Nothing was changed, and the lane opens again later."""


class AccessRefused(ClusterUnavailable):
    """Brokers and this client do not accept each other: a certificate, user or password is wrong. Waiting
    does not help, so a program that is starting ends with this error.
    """


class PositionLost(SteadfaustError):
    """The group's position and the changelog disagree, or the log was truncated beyond it. The lane stops."""


class PositionsDisagree(PositionLost):
    """The group's position differs from the one in the changelog.

    Seen once, another owner may have committed between the two reads. If both positions are the same after
    the lane has fenced again, one of them was reset.
    """

    @property
    def place(self) -> object:
        """A value that is equal for two errors about the same disagreement."""
        return str(self)


class Lost(NamedTuple):
    """A partition that was read or written up to `position`, and has lost its records from `at` on."""

    topic: str
    partition: int
    position: int
    at: int

    def __str__(self) -> str:
        return (
            f"{self.topic}[{self.partition}] has lost the records from offset {self.at} to {self.position},"
            " which lanes had read or written: other records are in their places, or none"
        )


class LogCut(PositionsDisagree):
    """A log has lost records that a lane had read or written, for example in an unclean leader election or
    because a disk lost its newest batches. Seen once, it may also be the answer of a former leader.

    Attributes:
        lost: the affected partitions, sorted.
        hides: whether records just written may hide the loss from the next opening of the lane.
    """

    def __init__(self, lost: Iterable[Lost], *, hides: bool = False) -> None:
        self.lost = sorted(lost)
        self.hides = hides
        topic = self.lost[0].topic
        super().__init__(
            f"{'; '.join(map(str, self.lost))}. An unclean leader election does this, or a disk that lost its"
            f" newest writes. To go on with what is there: `steadfaust positions accept --topic {topic}`;"
            ' see docs/operating.md, "A log was cut".'
        )

    @property
    def place(self) -> object:
        """The affected partitions. Their ends are left out, because they move while others write."""
        return [(each.topic, each.partition) for each in self.lost]


class TopicRecreated(PositionsDisagree):
    """A topic was deleted and created again, or the cluster is another one, so stored positions or rows do
    not belong to it. The lane stops. Seen once, it may be an outdated answer of a broker.
    """


class TopicGone(TopicMismatch):
    """The cluster no longer has a topic that the lane reads. The lane does not open without it.

    Attributes:
        topics: names of the missing topics.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        names = ", ".join(topics)
        super().__init__(
            f"the cluster no longer has {names}. Its records are lost; made again, it is another topic:"
            ' see docs/operating.md, "A topic is gone"'
        )


class PartitionsAdded(SteadfaustError):
    """Someone added partitions to an external topic. The lane opens again and reads them, too."""


class StoreFailed(SteadfaustError):
    """A lane's local store cannot be opened, read or written. This is not the fault of a message."""


class StoreBusy(StoreFailed):
    """Another owner still has the lane's local store open. The lane opens once that owner has closed it."""


class StoreBroken(StoreFailed):
    """A lane's local store is damaged. It is deleted and rebuilt from the changelogs."""


class StoreUnavailable(StoreFailed):
    """A lane's local store cannot be used for a reason outside it, such as a full disk. The lane keeps the
    files, closes the store and opens it again later. The text begins with the cause.
    """


class ChangelogDamaged(SteadfaustError):
    """A record of a changelog cannot be read, so no local store can be rebuilt. The lane does not open."""


class StoreTooOld(SteadfaustError):
    """A local store was last current so long ago that its changelogs may no longer have every deletion. It is
    deleted, and rebuilt when the lane opens again.
    """


class HandlerFailed(SteadfaustError):
    """A handler cannot run because of a bug in the library. The worker stops."""


class RowsUnavailable(TransientError):
    """No worker answered a request for rows of a table in time, or a worker refused it."""


class BlobsUnavailable(TransientError):
    """The object store did not answer in time, or refused for a reason that an operator can remove.

    Attributes:
        cause: bucket, code of the store and advice, without the name of the object, so that errors with the
            same cause can be grouped.
    """

    def __init__(self, text: str, *, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or text


class BlobMissing(PermanentError):
    """A message refers to an object that the store does not have. The text names it."""


class BlobArchived(PermanentError):
    """An object must be restored from an archive before it can be read. The text names it."""


class BlobAltered(PermanentError):
    """An object's size or digest differs from what its message states. The text names it."""


class CancelledError(TransientError):
    """Something that a handler awaited was cancelled, but not by the lane."""


class ProcessKilled(BaseException):
    """Stands for the end of the process in a test that runs a worker inside its own process."""


def text_of(error: BaseException) -> str:
    """The text of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except BaseException as cause:
        if ends_process(cause):
            raise
        return f"({type(error).__name__} cannot be shown: {type(cause).__name__})"


def shown(error: BaseException) -> str:
    """Type and text of an error, as `Type: text`."""
    return f"{type(error).__name__}: {text_of(error)}"


def ends_process(error: BaseException) -> bool:
    """Whether a signal handler raised this error to end the process, so that it must not be caught. Errors
    that a library raises, even SystemExit, are failures of that library.
    """
    if isinstance(error, ProcessKilled):
        return True
    if isinstance(error, Exception):
        return False
    codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    if any(_code_of(signal.getsignal(each)) in codes for each in signal.valid_signals()):
        return True  # a signal handler raised it
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return by_default and isinstance(error, KeyboardInterrupt) and not _is_by_statement(error)


def _code_of(handler: object) -> CodeType | None:
    """The code of a signal handler, if it is written in Python."""
    handler = getattr(handler, "func", handler)  # unwraps a partial, such as that of asyncio.run
    code: CodeType | None = getattr(handler, "__code__", None)
    return code


def _is_by_statement(error: BaseException) -> bool:
    """Whether a `raise` statement raised it. Python's default signal handler raises without one."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return True
    return opcode.opname[traceback.tb_frame.f_code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"
