"""What a position says of a log, and when a log is not the one that had it."""

import pytest

from streams.engine.life.positions.log_cuts import cut_notes
from streams.engine.staging.log_marks import UNKNOWN, Mark, decode_mark, encode_mark, lost_from, mark_of
from streams.errors import Lost
from streams.ports import TP, Commit, Note

pytestmark = pytest.mark.promise("truncated-logs")

KNOWN = Mark(epoch=3, at=10)


@pytest.mark.parametrize(
    ("mark", "end", "epoch_end", "found"),
    [
        (KNOWN, 10, 10, None),  # all is there
        (KNOWN, 90, 10, None),  # and more of a later leader
        (KNOWN, 90, 90, None),  # and more of the same one
        (KNOWN, 90, 7, 7),  # lost, and grown again
        (KNOWN, 8, 7, 7),  # lost, and grown by less
        (KNOWN, 7, 7, 7),  # lost
        (KNOWN, 90, None, None),  # the leader does not know the epoch
        (KNOWN, 7, None, 7),
        (UNKNOWN, 10, None, None),  # an earlier version has committed it
        (UNKNOWN, 90, None, None),
        (UNKNOWN, 7, None, 7),
        (UNKNOWN._replace(cut=4), 90, None, 4),  # it was found before
        (KNOWN._replace(cut=4), 90, 4, 4),
        (KNOWN._replace(cut=4), 90, 3, 3),  # and cut again since
        (UNKNOWN._replace(cut=4), 2, None, 2),
        (Mark(epoch=3, at=6), 90, 6, None),  # a clean election after the epoch was asked for
        (Mark(epoch=3, at=6), 90, 5, 5),
        (Mark(epoch=3, at=6), 8, 8, 8),
        (Mark(epoch=3, at=12), 11, 11, 11),  # more is known than the position says
    ],
)
def test_a_log_is_compared_with_what_is_known_of_it(
    mark: Mark, end: int, epoch_end: int | None, found: int | None
) -> None:
    assert lost_from(10, mark, end, epoch_end) == found


@pytest.mark.parametrize("mark", [UNKNOWN, KNOWN, Mark(1, 2, 3, 4), Mark(-1, 0, 2)])
def test_a_mark_is_kept_as_text(mark: Mark) -> None:
    assert decode_mark(encode_mark(mark)) == mark


@pytest.mark.parametrize("text", ["", "another client's", "1 2 3", "1 2 3 4 5", "a b c d"])
def test_a_text_of_another_client_says_nothing(text: str) -> None:
    assert decode_mark(text) == UNKNOWN
    assert mark_of(Commit(7, 5, text)) == Mark(epoch=5, at=7)
    assert mark_of(None) == UNKNOWN


def test_a_cut_is_noted_once_unless_it_is_lower() -> None:
    tp, new = TP("t", 0), TP("t", 1)
    lost = {each: Lost(*each, 10, 6) for each in (tp, new)}
    offsets, notes = cut_notes(lost, {tp: Commit(10, 3, "")})
    assert offsets == {tp: 10}
    assert notes == {tp: Note(3, encode_mark(UNKNOWN._replace(cut=6)))}
    noted = {tp: Commit(10, *notes[tp])}
    assert cut_notes(lost, noted) == ({}, {})
    offsets, notes = cut_notes({tp: Lost(*tp, 10, 4)}, noted)
    assert (offsets, notes) == ({tp: 10}, {tp: Note(3, encode_mark(UNKNOWN._replace(cut=4)))})
