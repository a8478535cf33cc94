"""Two clients must have read the same."""

from chaos.evidence.plain import Counting, judge_counts


def counting(*records: tuple[str, bytes | None]) -> Counting:
    made = Counting()
    for topic, message_id in records:
        made.add(topic, [("ce_id", message_id)])
    return made


def test_records_and_ids_are_counted_by_topic() -> None:
    counts = counting(("a", b"1"), ("a", b"1"), ("a", b"2"), ("b", None)).counts()
    assert counts == {"a": (3, 2), "b": (1, 1)}


def test_as_many_of_each_and_as_many_ids() -> None:
    both = counting(("a", b"1"), ("a", b"2")).counts()
    assert judge_counts(both, both).passed
    assert not judge_counts(both, counting(("a", b"1")).counts()).passed
    assert not judge_counts(both, counting(("a", b"1"), ("a", b"1")).counts()).passed
    assert not judge_counts(both, {}).passed
    assert not judge_counts({}, both).passed
    assert "a: (2, 2) and (0, 0)" in judge_counts(both, {}).says
