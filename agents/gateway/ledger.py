"""The gateway's books: a SQLite file in which every operation is done at most once, and durably."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Literal, TypeAlias, cast

from agents.gateway.cards import behaviour
from agents.gateway.wire import (
    ChargeAsk,
    Charged,
    LedgerPage,
    RefundAsk,
    Refunded,
    Refusal,
    Totals,
    VoidAsk,
)

Ask: TypeAlias = ChargeAsk | VoidAsk | RefundAsk
Row: TypeAlias = Charged | Refunded

#: Why a charge is declined that was voided before it was made.
VOIDED = "voided"

_COLUMNS = "position, operation, kind, status, reason, cents, card, charge_operation, done_at"
_FIND = f"SELECT {_COLUMNS} FROM operations WHERE operation = ?"
_PAGE = f"SELECT {_COLUMNS} FROM operations WHERE position > ? ORDER BY position LIMIT ?"
_CHARGE = f"""
    INSERT INTO operations (operation, kind, status, reason, cents, card)
    VALUES (?, 'charge', ?, ?, ?, ?) RETURNING {_COLUMNS}
"""
_REFUND = f"""
    INSERT INTO operations (operation, kind, status, cents, charge_operation)
    VALUES (?, 'refund', 'refunded', ?, ?) RETURNING {_COLUMNS}
"""
_REFUND_OF = "SELECT operation FROM operations WHERE charge_operation = ?"
_COUNT_OUTAGE = """
    INSERT INTO outages (operation, times) VALUES (?, 1)
    ON CONFLICT (operation) DO UPDATE SET times = times + 1
"""
_TOTALS = "SELECT status, count(*), sum(cents) FROM operations GROUP BY status"


class LedgerAnswer:
    """The result of one request.

    Attributes:
        row: the operation's row in the ledger, or why nothing was done.
        first: True when this very ask did it, False when it had been done before.
    """

    __slots__ = ("first", "row")

    def __init__(self, row: Row | Refusal, *, first: bool = False) -> None:
        self.row = row
        self.first = first


class Ledger:
    """One connection to the books, for one thread at a time. Another may read while one writes.

    Raises sqlite3.Error when the file cannot be opened, read or written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Transactions are begun and ended here alone; the group commit calls from a thread of its own.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=32)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # an answered charge survives a power cut
        self._db.execute("PRAGMA busy_timeout = 5000")
        self._db.executescript(resources.files(__package__).joinpath("ledger.sql").read_text())

    def close(self) -> None:
        """Close the file; what was answered is already on disk."""
        self._db.close()

    def apply(self, asks: Sequence[Ask]) -> list[LedgerAnswer]:
        """Do all of `asks` in order, in one durable transaction, and answer each. An error means none was."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            answers = [self._do(ask) for ask in asks]
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite ends it by itself on some errors, such as a full disk
                self._db.execute("ROLLBACK")
            raise
        return answers

    def find(self, operation: str) -> Row | None:
        """Return the charge or refund made under `operation`; None when there is none."""
        found = self._db.execute(_FIND, (operation,)).fetchone()
        return _row(found) if found else None

    def page(self, after: int, limit: int) -> LedgerPage:
        """Totals of the whole ledger, and up to `limit` rows that follow position `after`."""
        self._db.execute("BEGIN")  # totals and rows of one moment
        try:
            sums = {status: (count, cents) for status, count, cents in self._db.execute(_TOTALS)}
            found = self._db.execute(_PAGE, (after, limit + 1)).fetchall()
        finally:
            self._db.execute("COMMIT")
        captured, declined, refunded = (sums.get(s, (0, 0)) for s in ("captured", "declined", "refunded"))
        return LedgerPage(
            totals=Totals(*captured, *declined, *refunded),
            rows=[_row(row) for row in found[:limit]],
            next=found[limit - 1][0] if len(found) > limit else None,
        )

    def _do(self, ask: Ask) -> LedgerAnswer:
        match ask:
            case RefundAsk():
                return self._refund(ask)
            case VoidAsk():
                return self._void(ask)
            case ChargeAsk():
                return self._charge(ask)

    def _charged_before(self, ask: ChargeAsk | VoidAsk) -> LedgerAnswer | None:
        done = self.find(ask.operation)
        if done is None:
            return None
        if isinstance(done, Charged) and (done.cents, done.card) == (ask.cents, ask.card):
            return LedgerAnswer(done)
        return LedgerAnswer(_conflict(ask.operation, done, f"charge {ask.cents} cents to {ask.card}"))

    def _void(self, ask: VoidAsk) -> LedgerAnswer:
        if (answer := self._charged_before(ask)) is not None:
            return answer
        [row] = self._db.execute(_CHARGE, (ask.operation, "declined", VOIDED, ask.cents, ask.card))
        return LedgerAnswer(_row(row), first=True)

    def _charge(self, ask: ChargeAsk) -> LedgerAnswer:
        if (answer := self._charged_before(ask)) is not None:
            return answer
        card = behaviour(ask.card)
        if card.outages and self._turned_away(ask.operation) < card.outages:
            self._db.execute(_COUNT_OUTAGE, (ask.operation,))
            return LedgerAnswer(Refusal("unavailable", f"{ask.operation}: {ask.card} is unavailable for now"))
        status = "declined" if card.decline else "captured"
        [row] = self._db.execute(_CHARGE, (ask.operation, status, card.decline, ask.cents, ask.card))
        return LedgerAnswer(_row(row), first=True)

    def _refund(self, ask: RefundAsk) -> LedgerAnswer:
        if (done := self.find(ask.operation)) is not None:
            if isinstance(done, Refunded) and done.charge_operation == ask.charge_operation:
                return LedgerAnswer(done)
            return LedgerAnswer(_conflict(ask.operation, done, f"refund {ask.charge_operation}"))
        charge = self.find(ask.charge_operation)
        if not isinstance(charge, Charged):
            return LedgerAnswer(Refusal("unknown_charge", f"no charge was made under {ask.charge_operation}"))
        if charge.status == "declined":
            return LedgerAnswer(
                Refusal("not_captured", f"{ask.charge_operation} was declined: nothing to give back")
            )
        if earlier := self._db.execute(_REFUND_OF, (ask.charge_operation,)).fetchone():
            detail = f"{ask.charge_operation} was already given back under {earlier[0]}"
            return LedgerAnswer(Refusal("already_refunded", detail))
        [row] = self._db.execute(_REFUND, (ask.operation, charge.cents, ask.charge_operation))
        return LedgerAnswer(_row(row), first=True)

    def _turned_away(self, operation: str) -> int:
        found = self._db.execute("SELECT times FROM outages WHERE operation = ?", (operation,)).fetchone()
        return int(found[0]) if found else 0


def _row(columns: tuple[int, str, str, str, str, int, str, str, str]) -> Row:
    position, operation, kind, status, reason, cents, card, charge_operation, done_at = columns
    if kind == "refund":
        return Refunded(f"re_{position}", operation, charge_operation, "refunded", cents, done_at)
    outcome = cast('Literal["captured", "declined"]', status)  # the table's CHECK holds it to these
    return Charged(f"ch_{position}", operation, outcome, reason, cents, card, done_at)


def _conflict(operation: str, done: Row, request: str) -> Refusal:
    if isinstance(done, Charged):
        before = f"{done.status}, a charge of {done.cents} cents to {done.card}"
    else:
        before = f"a refund of {done.charge_operation}"
    detail = f"{operation} is already done: {before}. It cannot also {request}: use another operation"
    return Refusal("operation_conflict", detail)


class GroupCommit:
    """Writes to the ledger in a thread of its own, one transaction at a time, each of up to `most` asks."""

    def __init__(self, ledger: Ledger, *, most: int = 500) -> None:
        self._ledger = ledger
        self._most = most
        self._waiting: deque[tuple[Ask, asyncio.Future[LedgerAnswer]]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger-writer")

    async def do(self, ask: Ask) -> LedgerAnswer:
        """Do `ask` and answer once it is on disk. A ledger error reaches all that shared the commit."""
        answer: asyncio.Future[LedgerAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, answer))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await answer

    async def close(self) -> None:
        """Finish the requests that wait, then end the thread. The ledger stays open."""
        if self._writer is not None:
            await self._writer
        self._thread.shutdown()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            try:
                answers = await loop.run_in_executor(
                    self._thread, self._ledger.apply, [ask for ask, _ in batch]
                )
            except Exception as error:  # noqa: BLE001 - it is raised in everyone who waits for this commit
                for _, waiting in batch:
                    if not waiting.done():
                        waiting.set_exception(error)
                continue
            for (_, waiting), answer in zip(batch, answers, strict=True):
                if not waiting.done():  # the client may have hung up; its request is done all the same
                    waiting.set_result(answer)
