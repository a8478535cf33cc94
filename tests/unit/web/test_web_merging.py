"""Parts of several lanes as one answer: each field says how."""

from typing import Annotated

import msgspec

from streams.control.base.merging import each_by, earliest, known, merged, merged_by, total, total_by_name


class Cause(msgspec.Struct, frozen=True):
    error: str
    count: Annotated[int, total]


class Part(msgspec.Struct, frozen=True):
    name: str
    waiting: Annotated[dict[str, int], total] = {}
    durations: Annotated[list[int], total] = []
    since: Annotated[str, earliest] = ""
    pause: Annotated[str, known] = ""
    whole: Annotated[bool, all] = True
    causes: Annotated[list[Cause], each_by("error", order=lambda each: -each.count, most=1)] = []


def test_each_field_is_put_together_by_its_rule():
    one = Part(
        "a", {"retry": 1}, [1, 2], since="2026-01-02", causes=[Cause("OSError", 1), Cause("KeyError", 2)]
    )
    two = Part(
        "b", {"retry": 2, "dead": 1}, [1], since="", pause="by ann", whole=False, causes=[Cause("OSError", 2)]
    )
    found = merged([one, two])
    assert found == Part(
        "a", {"retry": 3, "dead": 1}, [2, 2], "2026-01-02", "by ann", False, [Cause("OSError", 3)]
    )


def test_parts_of_the_same_thing_are_one():
    causes = [Cause("OSError", 1), Cause("KeyError", 1), Cause("OSError", 4)]
    assert merged_by(causes, "error") == [Cause("OSError", 5), Cause("KeyError", 1)]


def test_counts_may_be_in_the_order_of_their_names():
    found = total_by_name([{"running": 1}, {"paused": 2, "running": 3}])
    assert list(found.items()) == [("paused", 2), ("running", 4)]
