"""Put the parts that several lanes or workers give of one thing together: each field of an answer says how.

    class TopicPart(msgspec.Struct):
        topic: str
        rate: Annotated[float, total] = 0.0

A field without a rule is that of the first part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import msgspec

A = TypeVar("A", bound=msgspec.Struct)
#: Makes one value of those of all parts, of which there is at least one.
Rule = Callable[[Sequence[Any]], Any]


def merged(parts: Sequence[A]) -> A:
    """The parts of one thing as one. There is at least one."""
    found = {name: rule([getattr(part, name) for part in parts]) for name, rule in _rules(type(parts[0]))}
    return msgspec.structs.replace(parts[0], **found)


def merged_by(parts: Iterable[A], name: str, *more: str) -> list[A]:
    """Parts of several things: those with equal values of these fields as one, in the order of the first."""
    groups: dict[Any, list[A]] = {}
    of = attrgetter(name, *more)
    for part in parts:
        groups.setdefault(of(part), []).append(part)
    return [merged(group) for group in groups.values()]


@cache
def _rules(kind: type[msgspec.Struct]) -> list[tuple[str, Rule]]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        (name, rule)
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for rule in hint.__metadata__
        if callable(rule)
    ]


# -- rules ------------------------------------------------------------------------------------------------


def total(values: Sequence[Any]) -> Any:
    """The sum: of numbers, of counts by name, or of numbers at the same place of lists."""
    if isinstance(values[0], dict):
        counts: Counter[str] = Counter()
        for each in values:
            counts.update(each)
        return dict(counts)
    if isinstance(values[0], list):
        return [sum(column) for column in zip_longest(*values, fillvalue=0)]
    return sum(values)


def total_by_name(values: Sequence[dict[str, int]]) -> dict[str, int]:
    """The sum of counts by name, in the order of the names."""
    return dict(sorted(total(values).items()))


def earliest(values: Sequence[str]) -> str:
    """The first of times in RFC 3339; empty ones are unknown."""
    return min(filter(None, values), default="")


def known(values: Sequence[Any]) -> Any:
    """The first that is not empty."""
    return next((value for value in values if value), values[0])


def each_by(name: str, *more: str, order: Callable[[Any], Any], most: int | None = None) -> Rule:
    """Lists as one list: those with equal values of these fields merged, in order, `most` of them."""

    def rule(values: Sequence[Any]) -> Any:
        return sorted(merged_by(chain.from_iterable(values), name, *more), key=order)[:most]

    return rule
