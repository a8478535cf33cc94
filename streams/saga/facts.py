"""The facts of a saga, and how its messages are filled from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from streams.model.message import Message

#: What a saga knows by now: the fields of the message that started it, and those of the replies so far.
Facts = Mapping[str, Any]
#: Makes what the facts do not have by name.
Made = Mapping[str, Callable[[Facts], Any]]


def filled(kind: type[Message], facts: Facts, made: Made, own: Collection[str]) -> dict[str, Any]:
    """The fields of a message: made, or by name from the facts, as far as there are any; without `own`."""
    return {
        name: made[name](facts) if name in made else facts[name]
        for name in kind.__struct_fields__
        if name not in own and (name in made or name in facts)
    }


def lacking(
    kind: type[Message], facts: Collection[str], made: Collection[str], own: Collection[str]
) -> list[str]:
    """Required fields that no fact has."""
    return [
        each.name
        for each in msgspec.structs.fields(kind)
        if each.required and each.name not in own and each.name not in made and each.name not in facts
    ]


def listed(names: list[str]) -> str:
    """Names, for an error."""
    return ", ".join(f"`{name}`" for name in names)
