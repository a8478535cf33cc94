"""What the watch makes of what it reads."""

from good_post import Written

from chaos.rig.commits import RESOLUTION, CommitWatch
from streams.ports import TP, Batch

TOPIC = "app-lane-changelog"


def arrived(*partitions: int, records: int = 1) -> list[Batch]:
    written = [Written(TOPIC, 0, offset, b"k", b"v") for offset in range(records)]
    return [Batch(TP(TOPIC, partition), written, records) for partition in partitions]


def test_partitions_are_noted_by_their_lane() -> None:
    watch = CommitWatch("", "app", partitions=4, lanes=2)
    watch.note(arrived(1, 3), 10.0)
    watch.note(arrived(2), 11.0)
    assert watch.commits().seen == {0: [11.0], 1: [10.0]}


def test_commits_close_together_are_noted_as_one() -> None:
    watch = CommitWatch("", "app", partitions=1, lanes=1)
    for tenth in range(4):
        watch.note(arrived(0), 10 + tenth * RESOLUTION / 2)
    assert watch.commits().seen == {0: [10.0, 10 + RESOLUTION]}


def test_a_marker_alone_is_no_commit() -> None:
    watch = CommitWatch("", "app", partitions=1, lanes=1)
    watch.note(arrived(0, records=0), 10.0)
    assert watch.commits().seen == {0: []}
