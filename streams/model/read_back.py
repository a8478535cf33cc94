"""Whether a value that was encoded reads back as what it was: what a handler decides is refused otherwise.

A Struct takes any value for any field, so a class says little of what it has. JSON has no `nan`; a text may
hold half of a surrogate pair; a number may not fit, or be out of the bounds that its type has.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float
from math import isfinite
from typing import Any, get_args

import msgspec

from streams.errors import Unencodable, WiringError, ends_process, shown, text_of

#: Maximum characters of a value in an error text, because values may be personal and long.
MOST_SHOWN = 40


def require_same(value: Any, back: Any) -> None:
    """Raise Unencodable, naming the field, unless `back` equals the value. Differences that the schema
    implies are allowed: a list read as a tuple, an int as an equal float, a number rounded to the 32 bits of
    Avro's `float`. NaN equals NaN.
    """
    if lost := _difference(value, back, ""):
        raise Unencodable(lost)


def require_defaults(kind: type[Any], where: str = "", seen: frozenset[Any] = frozenset()) -> None:
    """Raise WiringError if JSON cannot represent a default of the class or of a class nested in it. Schemas
    are JSON, and rows may be.
    """
    if kind in seen or not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    where = where or kind.__name__
    for field in msgspec.structs.fields(kind):
        default = field.default
        if default is not msgspec.NODEFAULT and (odd := _odd(_plain(default), "")):
            raise WiringError(
                f"{where}.{field.name} has a default that no schema can say ({odd}): use None, as in"
                " `float | None`, or a number that stands for it"
            )
        for part in _classes(field.type):
            require_defaults(part, f"{where}.{field.name}", seen | {kind})


def _classes(kind: Any) -> Iterator[Any]:
    if inner := get_args(kind):
        for each in inner:
            yield from _classes(each)
    else:
        yield kind


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,))
    except BaseException as error:  # what has no plain form is refused for its type, elsewhere
        if ends_process(error):
            raise
        return None


def why_not(value: Any, error: BaseException) -> str:
    """Which part of a value cannot be written or read back, if known; the text of `error` otherwise."""
    if isinstance(error, Unencodable):
        return str(error)
    found = _odd(_plain(value), "")
    said = text_of(error) if isinstance(error, Exception) else shown(error)
    return f"{found} ({said})" if found else said


def _odd(plain: Any, at: str) -> str:
    """Describes the first part of plain data that JSON or Avro cannot represent; empty if there is none."""
    if isinstance(plain, float) and not isfinite(plain):
        return f"{at or 'it'} is {plain}: infinite, or not a number"
    if isinstance(plain, int) and not -(1 << 63) <= plain < 1 << 64:
        return f"{at or 'it'} is a number of {plain.bit_length()} bits: 64 are the most"
    if isinstance(plain, str) and not _is_unicode(plain):
        return f"{at or 'it'} is a text with half of a surrogate pair, which is no Unicode"
    if isinstance(plain, dict):
        each = (
            (_odd(name, f"a key of {at or 'it'}") or _odd(part, _in(at, name)))
            for name, part in plain.items()
        )
        return next(filter(None, each), "")
    if isinstance(plain, list | tuple):
        return next(filter(None, (_odd(part, f"{at}[{n}]") for n, part in enumerate(plain))), "")
    return ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _difference(given: Any, read: Any, at: str) -> str:
    """Where and how a value differs from what was read back; empty if it does not."""
    if given == read or (given != given and read != read):  # NaN is not equal to itself
        return ""
    if isinstance(read, msgspec.Struct) and isinstance(given, msgspec.Struct):
        if differ := set(given.__struct_fields__) ^ set(read.__struct_fields__):
            return f"{at or 'it'} is a {type(given).__name__} with other fields: {', '.join(sorted(differ))}"
        fields = (
            (getattr(given, name), getattr(read, name), _in(at, name)) for name in read.__struct_fields__
        )
        return next(filter(None, (_difference(*each) for each in fields)), "")
    if isinstance(given, dict) and isinstance(read, dict):
        if given.keys() != read.keys():
            names = ", ".join(sorted(map(_shown, given.keys() ^ read.keys())))
            return f"{at or 'it'} does not come back with the same keys: {names}"
        parts = ((part, read[name], _in(at, name)) for name, part in given.items())
        return next(filter(None, (_difference(*each) for each in parts)), "")
    if isinstance(given, list | tuple) and isinstance(read, list | tuple) and len(given) == len(read):
        pairs = enumerate(zip(given, read, strict=True))
        return next(filter(None, (_difference(*pair, f"{at}[{n}]") for n, pair in pairs)), "")
    if odd := _odd(given, at):
        return odd
    if _rounded(given) == read:
        return ""
    kinds = type(given).__name__, type(read).__name__
    how = f"a {kinds[0]}, and comes back as a {kinds[1]}" if kinds[0] != kinds[1] else ""
    return f"{at or 'it'} is {how or f'{_shown(given)}, and comes back as {_shown(read)}'}"


def _rounded(given: Any) -> Any:
    """Round a number, or the numbers in a set, to a 32-bit float. Other or too large values are unchanged."""
    if isinstance(given, set | frozenset):
        return {_rounded(each) for each in given}
    if not isinstance(given, int | float) or float(given) != given:
        return given
    small = c_float(given).value
    return small if isfinite(small) else given


def _in(at: str, name: Any) -> str:
    return f"{at}.{name}" if at else str(name)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{type(value).__name__} of {len(text)} characters"
