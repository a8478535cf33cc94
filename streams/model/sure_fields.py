"""Detects values that certainly read back from JSON unchanged. Compiled with the hot path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from mypy_extensions import i64

_fields: Final[Callable[[Any], tuple[object, ...]]] = msgspec.structs.astuple
#: Values of these types are read from JSON as they were written, but for long numbers. Those that JSON does
#: not have, such as half of a surrogate pair, cannot be written.
_SURE: Final = (str, int, bool)
#: The largest whole number that is not read back.
_MOST: Final = (1 << 62) - 1


class SureFields:
    """Decides which values of a class need not be read back to check them."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._kind = kind
        is_plain = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        self._types: list[object] = [each.type for each in msgspec.structs.fields(kind)] if is_plain else []
        # A class with this method may refuse values when they are read.
        is_plain = is_plain and not hasattr(kind, "__post_init__")
        self._any = is_plain and all(each in _SURE for each in self._types)

    def has(self, value: object) -> bool:
        """Whether a value certainly reads back unchanged. False means that it may not."""
        if not self._any or type(value) is not self._kind:
            return False
        for place, field in enumerate(_fields(value)):
            kind = type(field)
            if kind is not self._types[place] or (kind is int and not _is_short(field)):
                return False
        return True


def _is_short(value: Any) -> bool:
    """Whether a whole number is short. A long one may be written, and then not be readable."""
    try:
        number: i64 = value
    except OverflowError:  # where this is compiled
        return False
    return -_MOST <= number <= _MOST
