"""Decide what a lane does after an error: a policy without I/O (docs/adr/0002).

What has nothing to do with the messages is waited out, with growing pauses: the connection, a refusal of the
broker, the disk. Being fenced, too: it is another owner, whom membership tells of, or a transaction that is
too slow. Where a record is refused, transactions become smaller until its message is alone in one, and known:
it becomes a dead letter (`streams.engine.staging.refusals`). An error that the lane is not made for makes its
transactions smaller, at the same place again and again; when it comes with one message alone, the lane is
quarantined, and tried again now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

from streams.errors import (
    ChangelogDamaged,
    ClockWrong,
    ClusterUnavailable,
    Fenced,
    PartitionsAdded,
    PositionsDisagree,
    RecordRefused,
    Refused,
    StoreBusy,
    StoreTooOld,
    StoreUnavailable,
    TopicGone,
    TopicMismatch,
    TransactionFailed,
    UnknownSchema,
)

#: Number of failures at the same place after which a lane with one message per transaction is quarantined.
QUARANTINE_AFTER = 5
#: Seconds before the lane opens again; doubled for each failure at the same place, up to the cap.
DELAY = 0.2
DELAY_CAP = 5.0
#: The cap if the cause is known and an operator has to remove it.
WAITING_CAP = 30.0
#: Seconds that a lane stays in quarantine before it tries again; doubled each time, up to the cap.
QUARANTINE, QUARANTINE_CAP = 60.0, 600.0
#: Factor by which transactions shrink after a failure.
SHRINK = 8
#: Number of single-message transactions after a refused record. The message that caused the refusal is alone
#: in one of them, whichever partition it is in.
ALONE = 64
#: Errors with fewer commits than this between them count as being at the same place, because the first
#: transactions after an opening may be smaller than the one that failed.
SOON = 8
#: After a transaction took too long, the size limit grows by one part in REGROW with each commit.
REGROW = 16


@dataclass(frozen=True, slots=True)
class Reopen:
    """Open again after `after` seconds."""

    after: float


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Stay closed for `after` seconds, because the same message would fail again."""

    after: float


def is_expected(error: Exception) -> bool:
    """Whether lanes expect an error like this in operation. Others are logged with their traceback."""
    made_for = (
        Fenced,
        TransactionFailed,
        ClusterUnavailable,
        PartitionsAdded,
        PositionsDisagree,
        StoreTooOld,
        TopicMismatch,
        UnknownSchema,
        ChangelogDamaged,
        StoreBusy,
        StoreUnavailable,
    )
    return isinstance(error, (*made_for, TimeoutError, OSError))


def waited_out(error: Exception) -> str:
    """The cause of an error that ends once an operator removes it; empty for other errors."""
    lacks = isinstance(error, TopicMismatch) and not isinstance(error, TopicGone)
    return str(error) if lacks or isinstance(error, (Refused, StoreBusy, StoreUnavailable)) else ""


def is_of_the_machine(error: Exception | None) -> bool:
    """Whether the cause is this machine, such as its clock or disk, so another one could run the lane."""
    return isinstance(error, (ClockWrong, StoreBusy, StoreUnavailable))


class Reopening:
    """Remembers where a lane has failed, and how many messages its next transaction may hold."""

    def __init__(self, max_batch: int, fenced_pause: float) -> None:
        """`fenced_pause`: seconds to wait after a fence until the group knows the lane's owner."""
        self.limit = max_batch
        self._max_batch = max_batch
        #: Number of messages that are expected to fit into the timeout of one transaction.
        self._fitting = max_batch
        self._fenced_pause = fenced_pause
        self._place: object = None
        self._failures = self._quarantines = self._alone = 0
        #: Commits since the last error.
        self._commits = SOON

    @property
    def failing(self) -> bool:
        """Whether nothing was committed since the last error."""
        return self._failures > 0

    def failed(self, error: Exception, place: object) -> Reopen | Quarantine:
        """Decide what follows an error. `place` is what the lane has committed; None during its opening."""
        again = place == self._place
        soon, self._commits = again or 0 < self._commits < SOON, 0
        self._place = place
        self._failures = self._failures if again else 0
        if isinstance(error, Fenced):
            # Two fences with few commits between them suggest a transaction that exceeds its timeout, rather
            # than another owner. If it was another owner, the limit grows back within a few commits.
            if soon and place is not None:
                self._fitting = max(1, self.limit // 2)
                self._shrink()
            return Reopen(self._fenced_pause)
        if isinstance(error, RecordRefused):
            self._shrink()
            self._alone = ALONE
            return Reopen(DELAY)
        self._failures += 1
        waited = waited_out(error)
        delay = min(DELAY * 2 ** min(self._failures - 1, 10), WAITING_CAP if waited else DELAY_CAP)
        if place is None or not soon or waited:
            return Reopen(delay)
        if again and self.limit == 1 and self._failures > QUARANTINE_AFTER and not is_expected(error):
            self._quarantines += 1
            return Quarantine(min(QUARANTINE * 2 ** min(self._quarantines - 1, 10), QUARANTINE_CAP))
        self._shrink()
        return Reopen(delay)

    def _shrink(self) -> None:
        self.limit = max(1, self.limit // SHRINK)

    def committed(self) -> None:
        """Note a commit: failures are forgotten, and the size limit grows again."""
        self._place = None
        self._failures = self._quarantines = 0
        self._commits += 1
        if self.limit == 1 and self._alone:
            self._alone -= 1
            return
        self.limit = min(self.limit * 2, self._fitting)
        self._fitting = min(self._fitting + max(1, self._fitting // REGROW), self._max_batch)
