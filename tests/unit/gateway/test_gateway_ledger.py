import asyncio
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agents.gateway.cards import ACCEPTED, CHARGED_BUT_TIMED_OUT, DECLINED, unavailable
from agents.gateway.ledger import GroupCommit, Ledger
from agents.gateway.wire import ChargeAsk, RefundAsk, Refusal
from tests.effort import examples
from tests.waiting import BOUND, eventually_async

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
CARDS = st.sampled_from([ACCEPTED, DECLINED, CHARGED_BUT_TIMED_OUT, unavailable(2), "tok_nobodys"])
ASKS = st.one_of(
    st.builds(ChargeAsk, operation=NAMES, cents=st.sampled_from([100, 200]), card=CARDS),
    st.builds(RefundAsk, operation=NAMES, charge_operation=NAMES),
)


class LedgerAgainstADict(RuleBasedStateMachine):
    """With any requests in any batches and restarts, the ledger answers as a dict would."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "gateway", "ledger.sqlite")
        self.ledger = Ledger(self.path)
        self.done = {}  # operation -> the request and its result
        self.outages = {}

    def teardown(self):
        self.ledger.close()
        self.folder.cleanup()

    def expected(self, ask):
        if ask.operation in self.done:
            before, outcome = self.done[ask.operation]
            return outcome if before == ask else "operation_conflict"
        outcome = self.charged(ask) if isinstance(ask, ChargeAsk) else self.refunded(ask)
        if outcome in {"captured", "declined", "refunded"}:
            self.done[ask.operation] = ask, outcome
        return outcome

    def charged(self, ask):
        if ask.card == unavailable(2) and self.outages.get(ask.operation, 0) < 2:
            self.outages[ask.operation] = self.outages.get(ask.operation, 0) + 1
            return "unavailable"
        return "declined" if ask.card in {DECLINED, "tok_nobodys"} else "captured"

    def refunded(self, ask):
        charge, outcome = self.done.get(ask.charge_operation, (None, None))
        if not isinstance(charge, ChargeAsk):
            return "unknown_charge"
        if outcome == "declined":
            return "not_captured"
        asks = (done for done, _ in self.done.values())
        if any(isinstance(a, RefundAsk) and a.charge_operation == ask.charge_operation for a in asks):
            return "already_refunded"
        return "refunded"

    @rule(asks=st.lists(ASKS, min_size=1, max_size=6))
    def ask(self, asks):
        for ask, answer in zip(asks, self.ledger.apply(asks), strict=True):
            new = ask.operation not in self.done
            outcome = self.expected(ask)
            if isinstance(answer.row, Refusal):
                assert answer.row.error == outcome
                assert not answer.first
            else:
                assert answer.row.status == outcome
                assert answer.row.operation == ask.operation
                assert answer.first == new

    @rule()
    def restart(self):
        self.ledger.close()
        self.ledger = Ledger(self.path)

    @rule(name=NAMES)
    def find(self, name):
        row = self.ledger.find(name)
        assert (row and row.status) == self.done.get(name, (None, None))[1]

    @rule(size=st.integers(1, 3))
    def read_by_the_page(self, size):
        rows, after = [], 0
        while after is not None:
            page = self.ledger.page(after, size)
            rows += page.rows
            after = page.next
        assert [row.operation for row in rows] == list(self.done)

    @invariant()
    def totals_add_up(self):
        totals = self.ledger.page(0, 1).totals
        amounts = {"captured": [], "declined": [], "refunded": []}
        for ask, outcome in self.done.values():
            charge = ask if isinstance(ask, ChargeAsk) else self.done[ask.charge_operation][0]
            amounts[outcome].append(charge.cents)
        assert (totals.captured, totals.captured_cents) == summed(amounts["captured"])
        assert (totals.declined, totals.declined_cents) == summed(amounts["declined"])
        assert (totals.refunded, totals.refunded_cents) == summed(amounts["refunded"])


def summed(amounts):
    return len(amounts), sum(amounts)


TestLedgerAgainstADict = LedgerAgainstADict.TestCase
TestLedgerAgainstADict.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)


@pytest.fixture
def ledger(tmp_path):
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        yield ledger


def test_a_failed_batch_does_nothing(ledger):
    with pytest.raises(sqlite3.Error):
        ledger.apply([ChargeAsk("a", 5, ACCEPTED), ChargeAsk("b", 0, ACCEPTED)])  # the table refuses 0 cents
    assert ledger.find("a") is None
    [answer] = ledger.apply([ChargeAsk("a", 5, ACCEPTED)])
    assert answer.first


def test_a_conflict_says_what_was_done_before(ledger):
    ledger.apply([ChargeAsk("capture:1", 5, ACCEPTED)])
    [answer] = ledger.apply([ChargeAsk("capture:1", 6, ACCEPTED)])
    assert answer.row == Refusal(
        "operation_conflict",
        "capture:1 is already done: captured, a charge of 5 cents to tok_accepted. "
        "It cannot also charge 6 cents to tok_accepted: use another operation",
    )


class SlowDisk:
    """A ledger whose commits wait for the test, and which notes what each one held."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.go_on = threading.Semaphore(0)
        self.batches = []
        self.fail = False

    def apply(self, asks):
        self.batches.append([ask.operation for ask in asks])
        assert self.go_on.acquire(timeout=BOUND)
        if self.fail:
            raise sqlite3.OperationalError("disk is full")
        return self.ledger.apply(asks)


async def test_asks_that_arrive_during_a_commit_share_the_next_one(ledger):
    disk = SlowDisk(ledger)
    commits = GroupCommit(disk, most=3)
    first = asyncio.create_task(commits.do(ChargeAsk("a", 1, ACCEPTED)))
    await eventually_async(lambda: disk.batches, "a commit begins", every=0)
    rest = [asyncio.create_task(commits.do(ChargeAsk(name, 1, ACCEPTED))) for name in "bcde"]
    await eventually_async(lambda: len(commits._waiting) == 4, "four wait", every=0)
    assert not first.done()
    disk.go_on.release(3)
    answers = await asyncio.gather(first, *rest)
    assert disk.batches == [["a"], ["b", "c", "d"], ["e"]]
    assert [answer.row.operation for answer in answers] == list("abcde")
    await commits.close()


async def test_a_failed_commit_fails_only_who_shared_it(ledger):
    disk = SlowDisk(ledger)
    disk.fail = True
    commits = GroupCommit(disk)
    asks = [asyncio.create_task(commits.do(ChargeAsk(name, 1, ACCEPTED))) for name in "ab"]
    disk.go_on.release()
    answers = await asyncio.gather(*asks, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["disk is full", "disk is full"]
    disk.fail = False
    disk.go_on.release()
    assert (await commits.do(ChargeAsk("a", 1, ACCEPTED))).first
    await commits.close()


async def test_a_charge_is_made_though_its_asker_hung_up(ledger):
    disk = SlowDisk(ledger)
    commits = GroupCommit(disk)
    ask = asyncio.create_task(commits.do(ChargeAsk("a", 1, ACCEPTED)))
    await eventually_async(lambda: disk.batches, "a commit begins", every=0)
    ask.cancel()
    await asyncio.wait([ask])
    disk.go_on.release()
    await commits.close()
    assert ledger.find("a") is not None
