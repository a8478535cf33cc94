"""What names objects for dead letters: as long as a letter is kept, and no longer."""

from types import SimpleNamespace
from typing import Any

import pytest
from letters_kept import Kept

from streams.engine.staging.arrival import Counters, Fresh
from streams.engine.staging.changes import Change, Writes
from streams.engine.staging.commit_order import CommitOrder
from streams.engine.staging.entry import Entry
from streams.engine.staging.keys import prefix_of, store_key
from streams.engine.staging.payloads import Prepared, Upload, reference
from streams.engine.waiting.dead_letters.row import Letter, new_letter
from streams.engine.waiting.gate import HandlerGate
from streams.engine.way.attempt import Attempts
from streams.engine.way.references import LETTERS_BYTES, PAUSE, STEP, References
from streams.errors import PermanentError
from streams.model.claim import claim_of, with_claim
from streams.model.layout import CLAIMS, Layout
from streams.model.policy.breaker import BreakerPolicy
from streams.testing.clock import ManualClock
from streams.testing.log import FakeRecord

pytestmark = pytest.mark.promise("replayed-payloads")

DAY = 86400.0
LIMIT = 400_000


def a_letter(i: int = 0, *, size: int = 0) -> Letter:
    headers = with_claim([("ce_id", b"%d" % i)], claim_of("ours", "parcel", str(i), b"large"))
    record = FakeRecord("parcels", 1, i, 1, b"a", b"", [*headers, ("note", b"n" * size)])
    return new_letter(record, PermanentError("no"), handler="post.note", attempts=1, now_ms=0, limit=LIMIT)


class House(Kept):
    """A lane's store and its housekeeping; rows of objects are kept for a day."""

    def __init__(self) -> None:
        super().__init__(max_message_bytes=LIMIT, claim_retention=DAY)
        self.references = References(self.letters, "ours")
        self.steps: list[int] = []

    def commit(self, change: Change) -> None:
        pair = store_key(1, change.key), change.value
        self.store.apply(list(Writes(60.0).local(change.table, [pair])), {})

    def pass_to(self, now: float) -> None:
        """Time passes, and two rounds begin and end."""
        for n in range(3):
            for _ in range(20):
                if self.references.step(now + n * PAUSE, room=lambda: 0):
                    staged = self.commit_staged()
                    assert {local[:2] for local in staged.changes[CLAIMS]} == {prefix_of(1)}
                    self.steps.append(len(staged.changes[CLAIMS]))

    @property
    def named(self) -> int:
        return len(dict(self.store.scan(CLAIMS)))


def test_what_a_letter_refers_to_is_named_while_kept() -> None:
    house, letter = House(), a_letter()
    house.commit(house.letters.set(letter))
    for days in (0.1, 0.6, 1.1, 1.5, 2.2, 9.0):
        house.pass_to(days * DAY)
        assert house.named == 1, days
    house.commit(house.letters.remove(letter))
    house.pass_to(9.9 * DAY)
    assert house.named == 1, "its day is not over"
    house.pass_to(10.1 * DAY)
    assert house.named == 0


@pytest.mark.parametrize(
    ("letters", "size", "most"),
    [(3 * STEP, 0, STEP), (10, LETTERS_BYTES // 4, 4)],
    ids=["small ones", "of large ones fewer"],
)
def test_letters_that_nobody_named_are_looked_at_in_bounded_steps(letters: int, size: int, most: int) -> None:
    house = House()
    for i in range(letters):
        house.commit(house.letters.set(a_letter(i, size=size)))
    house.pass_to(0.1 * DAY)
    assert house.named == letters
    assert max(house.steps) == most


def test_a_letter_that_expires_first_is_left_alone() -> None:
    house = House()
    house.commit(house.letters.set(a_letter()))
    house.pass_to(0.1 * DAY)
    before = dict(house.store.scan(CLAIMS))
    house.pass_to(0.9 * DAY)
    assert dict(house.store.scan(CLAIMS)) == before


def test_what_lies_in_another_bucket_is_not_named() -> None:
    house = House()
    headers = with_claim([("ce_id", b"1")], claim_of("theirs", "parcel", "1", b"large"))
    record = FakeRecord("parcels", 1, 0, 1, b"a", b"", headers)
    foreign = new_letter(record, PermanentError("no"), handler="", attempts=0, now_ms=0, limit=10_000)
    house.commit(house.letters.set(foreign))
    house.pass_to(0.1 * DAY)
    assert house.named == 0


def test_a_reference_needed_again_is_written_after_its_removal() -> None:
    """The removal is in an entry that may be committed after that of the outcome."""
    kept = Kept(max_message_bytes=LIMIT)
    claims = [claim_of("ours", "parcel", name, b"large") for name in ("going", "staying", "new")]
    going, staying, _ = (reference(claim.name, 1.0) for claim in claims)
    kept.staging.put(Entry(1, None, 0), [Change(CLAIMS, going.key, None), staying])
    prepared = Prepared([], [], [], tuple(Upload(claim, b"large", 9.0) for claim in claims))
    entry = Entry(1, None, 0)
    again = kept.outcomes.put_prepared(entry, prepared)
    assert [(change.key, change.value) for change in again] == [(going.key, reference("", 9.0).value)]
    assert [change.value for change in entry.changes] == [reference("", 9.0).value] * 3


async def test_references_being_removed_are_written_behind_the_outcome() -> None:
    prepared, removed = Prepared([], [], [], ()), [reference("events/parcel/1", 9.0)]
    behind: list[tuple[int, Any]] = []

    async def ask() -> None: ...

    async def write(uploads: Any) -> None: ...

    outcomes: Any = SimpleNamespace(stage=lambda *_: prepared, put_prepared=lambda *_: removed)
    staging: Any = SimpleNamespace(
        counters=Counters(),
        order=CommitOrder(Layout("post", 2, 1)),
        append=lambda partition, changes: behind.append((partition, changes)),
    )
    payloads: Any = SimpleNamespace(write=write)
    handler: Any = SimpleNamespace(
        name="post.note", is_async=True, wants_envelope=False, call=lambda _: ask(), rows=()
    )
    gates = {"post.note": HandlerGate("post.note", BreakerPolicy())}
    waiting: Any = SimpleNamespace(
        gates=gates, outcomes=outcomes, staging=staging, letters=None, succeeded=lambda *_: None
    )
    nothing: Any = None
    attempts = Attempts(waiting, payloads, ManualClock())
    route: Any = SimpleNamespace(handlers_without_inbox=((handler, None),))
    await attempts.run_in_background(Fresh(Entry(1, None, 0), route, a_letter().record, nothing, object()))
    assert behind == [(1, removed)]


def test_a_row_being_made_new_is_not_removed() -> None:
    house, old, new = House(), reference("events/parcel/1", 0.0), reference("events/parcel/1", 9 * DAY)
    house.commit(old)
    house.staging.show(store_key(1, new.key), new)  # staged by a message, and not committed yet
    house.pass_to(2 * DAY)
    assert house.named == 1
