"""Chores of a lane: each in its turn, with the room that is left then; letters expire within it."""

from collections.abc import Callable

import pytest
from letters_kept import Kept

from streams.dead_letters.expiry import Expiry
from streams.dead_letters.row import new_letter
from streams.errors import PermanentError
from streams.lane.housekeeping import Housekeeping, Throttled
from streams.model.layout import DEAD_LETTERS
from streams.testing.log import FakeRecord

RETENTION = 10.0


class Taking:
    """A chore that takes some of the room."""

    def __init__(self, left: list[int], *, takes: int) -> None:
        self.left = left
        self.takes = takes
        self.rooms: list[int] = []

    def step(self, now: float, room: Callable[[], int]) -> bool:
        self.rooms.append(room())
        self.left[0] -= self.takes
        return self.takes > 0


@pytest.mark.parametrize(
    ("takes", "staged"), [((0, 0), False), ((3, 0), True), ((0, 2), True), ((3, 2), True)]
)
def test_each_chore_has_the_room_that_is_left(takes: tuple[int, int], staged: bool) -> None:
    left = [10]
    first, second = (Taking(left, takes=each) for each in takes)
    assert Housekeeping([first, second]).step(0.0, lambda: left[0]) is staged
    assert (first.rooms, second.rooms) == ([10], [10 - takes[0]])


def test_what_needs_no_haste_is_done_seldom() -> None:
    done: list[float] = []
    chore = Throttled(done.append, every=600.0)
    for now in (1000.0, 1000.1, 1599.9, 1600.0, 1601.0, 2200.0):
        assert chore.step(now, lambda: 0) is False
    assert done == [1000.0, 1600.0, 2200.0]


@pytest.mark.parametrize("partition", [0, 4])  # of 4: an added one's letters lie among those of 0
def test_the_oldest_letters_expire_as_far_as_room_allows(partition: int) -> None:
    kept = Kept(max_message_bytes=20_000, dead_letter_retention=RETENTION)
    store, letters, staging = kept.store, kept.letters, kept.staging
    expiry = Expiry(letters)

    def left() -> list[int]:
        kept.commit_staged()
        return sorted(letter.offset for key, _ in store.scan(DEAD_LETTERS) if (letter := letters.get(key)))

    for offset in range(5):
        record = FakeRecord("parcels", partition, offset, 1, b"a", b"", [("ce_id", b"1")])
        now_ms = 1000 * (offset + 1)
        letter = new_letter(
            record, PermanentError("no"), handler="post.note", attempts=1, now_ms=now_ms, limit=20_000
        )
        staging.append(0, [letters.set(letter)])
    assert left() == [0, 1, 2, 3, 4]
    now = RETENTION + 4.5
    assert expiry.step(now, lambda: 0) is False
    assert left() == [0, 1, 2, 3, 4]
    assert expiry.step(now, lambda: 3) is True
    assert left() == [3, 4]
    assert expiry.step(now, lambda: 3) is True
    assert left() == [4], "its time is not over"
    assert expiry.step(now + 1.0, lambda: 3) is False, "the next round is later"
