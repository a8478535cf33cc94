"""The facts of a saga, and how its messages are filled from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from streams.model.message import Message

#: What a saga knows: the fields of its start message and of the replies so far.
Facts = Mapping[str, Any]
#: Functions that compute fields which the facts do not have by name.
Made = Mapping[str, Callable[[Facts], Any]]


def filled(kind: type[Message], facts: Facts, made: Made, own: Collection[str]) -> dict[str, Any]:
    """Values for the fields of a message: computed by `made` or taken from the facts. Leaves out `own`."""
    return {
        name: made[name](facts) if name in made else facts[name]
        for name in kind.__struct_fields__
        if name not in own and (name in made or name in facts)
    }


def lacking(
    kind: type[Message], facts: Collection[str], made: Collection[str], own: Collection[str]
) -> list[str]:
    """Required fields that are in none of `facts`, `made` and `own`."""
    return [
        each.name
        for each in msgspec.structs.fields(kind)
        if each.required and each.name not in own and each.name not in made and each.name not in facts
    ]


def listed(names: list[str]) -> str:
    """Names as a list for an error text."""
    return ", ".join(f"`{name}`" for name in names)
