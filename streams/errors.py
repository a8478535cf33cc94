"""Types of errors. A message says what, where and what to do."""

from __future__ import annotations

import opcode
import signal
from collections.abc import Iterable, Sequence
from traceback import walk_tb
from types import CodeType
from typing import NamedTuple


class SteadfaustError(Exception):
    """Base of every error that a user can act on; its message says what, where and what to do."""


class SettingsError(SteadfaustError):
    """A setting is missing, or two of them contradict each other; the application does not start."""


class MissingExtra(SteadfaustError, ImportError):
    """A part of the library lacks an optional dependency; the message names the extra that has it."""


def missing_extra(extra: str, part: str, error: ModuleNotFoundError) -> ImportError:
    """The error to raise where a part of the library could not import a package.

    Of our own modules it is the one that is given.
    """
    if (error.name or "").partition(".")[0] == "streams":
        return error
    return MissingExtra(f"{part} need {error.name}: pip install 'steadfaust[{extra}]'")


class WiringError(SteadfaustError):
    """A choreography names a handler, message or resource that does not fit; raised at import or start."""


class TopicMismatch(SteadfaustError):
    """A topic in the cluster differs from its declaration; the application does not start."""


class LayoutMismatch(SteadfaustError):
    """Workers of one group disagree on the number of partitions or lanes, or have no topic in common."""


class ReshardRefused(SteadfaustError):
    """An application cannot be given these partitions as it is; the message says what is in the way."""


class MembershipLost(SteadfaustError):
    """The worker cannot be a member of its group any more; it stops, others take its lanes."""


class PermanentError(SteadfaustError):
    """Trying the same message again cannot help: it goes to the dead letters as it came."""


class TransientError(SteadfaustError):
    """Something outside did not work and may work later: the same message is tried again."""


class DataError(PermanentError):
    """A message, or what its handler made of it, is impossible. That tells nothing of the outside, so a
    circuit breaker does not count it.
    """


class MissingHeader(DataError):
    """A message lacks a header that delivery depends on, such as its id."""


class HeaderTooLong(DataError):
    """A header that is kept of every message, or passed on to what it causes, has too many bytes."""


class KeyMismatch(DataError):
    """A message came under another key than the one it is about: its handlers would touch foreign rows."""


class Unreadable(DataError):
    """A record, or a batch of them, is damaged or not what Kafka's format allows."""


class Undecodable(DataError):
    """The bytes of a message are not what its schema says."""


class Unencodable(DataError):
    """A handler decided on a value that does not fit its schema, such as a number of 70 bits, or returned
    what it is not declared to return or send.
    """


class RowUnreadable(DataError):
    """A stored row of the message's key cannot be read: the message is a dead letter until an operator has
    mended the row; other keys go on.
    """


class TooLarge(DataError):
    """A row or an outgoing message is over the broker's limit; found when staged, before the commit."""


class QueueFull(PermanentError):
    """As many messages of an ordering key wait for a handler as may: one more goes to the dead letters."""


class UnknownSchema(SteadfaustError):
    """A message was written with a schema that is not announced yet; it waits, for a time.

    Attributes:
        fingerprint: the writer's schema fingerprint, 16 hexadecimal digits.
    """

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(f"schema {fingerprint} has not been announced yet; messages written with it wait")


class NewerSchema(UnknownSchema):
    """A newer version of the application wrote this, and this version cannot read it. It waits, for a time,
    for a worker of that version: a deploy is under way.
    """

    def __init__(self, fingerprint: str, why: str) -> None:
        SteadfaustError.__init__(self, why)
        self.fingerprint = fingerprint


class SchemaNeverAnnounced(PermanentError):
    """A message has waited for its schema for as long as it may; the text says for which, and since when."""


class MessageExpired(PermanentError):
    """A message's deadline was over before its turn came."""


class NotYet(TransientError):
    """A message is for another version of the application, newer or older than this worker: a deploy is
    under way. The message waits; this is no failed attempt, and never a dead letter.
    """


class SagaVersionUnknown(NotYet):
    """A saga began with a version of its definition that this worker does not have, or does not have yet."""


class SagaStepsChanged(NotYet):
    """A saga began with other steps than its definition has now, although the version is the same."""


class RowSchemaUnknown(NotYet):
    """A row of the message's key was written with a schema that is not announced yet, or that only newer
    workers can read. The message waits for as long as one that was itself written so.
    """


class RepairRefused(SteadfaustError):
    """An operation on a saga is impossible in its state; nothing was changed."""


class Fenced(SteadfaustError):
    """Another owner has opened the lane: this one is a zombie and changes nothing more."""


class TransactionFailed(SteadfaustError):
    """A transaction did not commit, as far as its producer knows. The producer is discarded, and the lane
    opens again from Kafka's state. The subclasses say whether the outcome is known.
    """


class OutcomeUnknown(TransactionFailed):
    """The transaction may or may not have committed: the broker's answer is missing, or does not tell."""


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
    """The broker refuses what a message leads to, so its transaction cannot be committed.

    Attributes:
        omit: whether its dead letter was refused, too, and is to go without the message's value.
    """

    def __init__(self, text: str, *, omit: bool = False) -> None:
        self.omit = omit
        super().__init__(text)


class ClusterUnavailable(SteadfaustError):
    """Kafka did not answer in time; nothing was changed, and the lane opens again later."""


class AccessRefused(ClusterUnavailable):
    """Brokers and this client do not trust each other: a certificate, a user or a password is not right. It
    does not pass by itself; what starts ends with it.
    """


class PositionLost(SteadfaustError):
    """The source position and the changelog disagree, or the log was truncated past it; the lane stops."""


class PositionsDisagree(PositionLost):
    """The group's position differs from that of the changelog. Once, it may be that another owner has
    committed between the two questions; after another fence and with the same two positions, one of them was
    reset.
    """

    @property
    def place(self) -> object:
        """Equal for errors that say the same."""
        return str(self)


class Lost(NamedTuple):
    """A partition that was read or written up to `position`, and has lost what it had from `at` on."""

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
    """A log has lost records that a lane had read or written, such as after an unclean leader election, or
    when a disk has lost its newest batches. Once, it may be the answer of a broker that leads no more.

    Attributes:
        lost: which partitions, sorted.
        hides: whether what was just written may hide it from the next opening.
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
        """The partitions: where only the end is known it moves while others write."""
        return [(each.topic, each.partition) for each in self.lost]


class TopicRecreated(PositionsDisagree):
    """A topic is another one than that of its name to which positions or rows belong, or all of it is in
    another cluster; the lane stops. Once, it may be a broker's answer from before.
    """


class TopicGone(TopicMismatch):
    """The cluster does not have a topic that it had: the lane does not open without it.

    Attributes:
        topics: their names.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self.topics = tuple(topics)
        names = ", ".join(topics)
        super().__init__(
            f"the cluster has no {names} any more. What was in it is gone; made again, it is another topic:"
            ' see docs/operating.md, "A topic is gone"'
        )


class PartitionsAdded(SteadfaustError):
    """A topic from outside has more partitions than the lane reads: it opens again, and reads them, too."""


class StoreFailed(SteadfaustError):
    """A lane's local store cannot be opened, read or written. No message is to blame for it."""


class StoreBusy(StoreFailed):
    """A lane's local store is still open in another owner; it opens once that one has closed it."""


class StoreBroken(StoreFailed):
    """A lane's local store is damaged: it is wiped and rebuilt from its changelogs."""


class StoreUnavailable(StoreFailed):
    """A lane's local store cannot be used for a reason that is not in it, such as a full disk. Its copy is
    kept; the lane closes it, and opens it again later. The message begins with the cause.
    """


class ChangelogDamaged(SteadfaustError):
    """A record of a changelog cannot be read, so no store can be made of it: the lane does not open."""


class StoreTooOld(SteadfaustError):
    """A local store was last current so long ago that deletions may be gone from its changelogs: it is wiped
    and rebuilt when it is opened again.
    """


class HandlerFailed(SteadfaustError):
    """A handler cannot be run at all, for a fault of the library: the worker stops."""


class RowsUnavailable(TransientError):
    """No worker has answered for a table's rows in time, or one has refused."""


class BlobsUnavailable(TransientError):
    """The object store did not answer in time, or refused for a reason that an operator can mend.

    Attributes:
        cause: the bucket, the store's code and what to do, without the object: alike for each of them.
    """

    def __init__(self, text: str, *, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause or text


class BlobMissing(PermanentError):
    """A message refers to an object that the store does not have; its message names the object."""


class BlobArchived(PermanentError):
    """An object has to be restored from an archive before it can be read; its message names the object."""


class BlobAltered(PermanentError):
    """An object is not what was checked in: its size or digest is another; its message names the object."""


class CancelledError(TransientError):
    """Something that a handler waited for was cancelled, and not by its lane."""


class ProcessKilled(BaseException):
    """Stands for the end of a process, in a test that runs a worker inside its own."""


def text_of(error: BaseException) -> str:
    """The text of an error, also of one whose `__str__` raises."""
    try:
        return str(error)
    except BaseException as cause:
        if ends_process(cause):
            raise
        return f"({type(error).__name__} cannot be shown: {type(cause).__name__})"


def shown(error: BaseException) -> str:
    """The type and the text of an error."""
    return f"{type(error).__name__}: {text_of(error)}"


def ends_process(error: BaseException) -> bool:
    """Whether a signal has raised an error to end this process: it must not be caught. What a library raises
    is that library's failure, also SystemExit.
    """
    if isinstance(error, ProcessKilled):
        return True
    if isinstance(error, Exception):
        return False
    codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    if any(_code_of(signal.getsignal(each)) in codes for each in signal.valid_signals()):
        return True  # a handler of signals has raised it
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return by_default and isinstance(error, KeyboardInterrupt) and not _is_by_statement(error)


def _code_of(handler: object) -> CodeType | None:
    """The code of a signal's handler, where it is in Python."""
    handler = getattr(handler, "func", handler)  # of a partial, such as that of asyncio.run
    code: CodeType | None = getattr(handler, "__code__", None)
    return code


def _is_by_statement(error: BaseException) -> bool:
    """Whether a `raise` raised it: what Python's own handler of signals raises comes from no statement."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return True
    return opcode.opname[traceback.tb_frame.f_code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"
