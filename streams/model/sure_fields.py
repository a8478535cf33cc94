"""Whether a value's fields are such that JSON gives them back as they are; compiled with the hot path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

_fields: Final[Callable[[Any], tuple[object, ...]]] = msgspec.structs.astuple
#: JSON has these as they are; what it has not of them, such as half of a surrogate pair, is not written.
_SURE: Final = (str, int, bool)


class SureFields:
    """Tells of values of a class which of them need not be read back."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._kind = kind
        self._types: list[object] = [field.type for field in msgspec.structs.fields(kind)]
        # What a class allows that looks at itself is not known.
        self._any = all(each in _SURE for each in self._types) and not hasattr(kind, "__post_init__")

    def has(self, value: object) -> bool:
        """Whether a value surely reads back as what it is. False: perhaps not."""
        if not self._any or type(value) is not self._kind:
            return False
        return all(type(field) is self._types[place] for place, field in enumerate(_fields(value)))
