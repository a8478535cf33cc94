"""Checks that numbers in Avro bytes are in the range of their types: 64 bits for `long`, 32 bits for `int`.

fastavro reads longer numbers modulo 2^64 (a price of 2^63 cents as 0), and treats `int` like `long`. A number
that is too long has several bytes in a row with the high bit set, so only data with such a run is walked. For
other data, the check costs half a microsecond for each 300 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Walks over a value: takes the bytes and its start, and returns its end.
_Walk = Callable[[bytes, int], int]

_HIGH = bytes(byte >> 7 for byte in range(256))
#: A number out of range has at least this many bytes in a row with the high bit set. A zigzag varint has 7
#: bits in each byte, so it can exceed 64 bits only after nine such bytes, and 32 bits only after four.
_TOO_LONG = b"\1" * 9
_TOO_LONG_FOR_INT = b"\1" * 4


class Ranges:
    """Checks the number ranges of values of a schema that fastavro has parsed."""

    def __init__(self, schema: Any) -> None:
        walks = _Walks()
        self._walk = walks.over(schema)
        self._sign = _TOO_LONG_FOR_INT if walks.has_int else _TOO_LONG

    def check(self, data: bytes) -> None:
        """Raises OverflowError if a number in a value of this schema is out of range."""
        if not data.isascii() and self._sign in data.translate(_HIGH):
            self._walk(data, 0)


class _Walks:
    """Builds walks over values. A schema may refer to its own named types, also recursively."""

    def __init__(self) -> None:
        self.has_int = False
        self._named: dict[str, _Walk] = {}

    def over(self, schema: Any) -> _Walk:
        """The walk over the values of a schema."""
        if isinstance(schema, list):
            return _union([self.over(branch) for branch in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.over(kind)
        if kind in _SIZES:
            return _skip(_SIZES[kind])
        if kind in ("bytes", "string"):
            return _sized
        if kind == "int":
            self.has_int = True
            return _int
        if kind == "long":
            return _long
        if kind == "array":
            return _blocks(self.over(schema["items"]))
        if kind == "map":
            return _blocks(_record([_sized, self.over(schema["values"])]))
        if isinstance(schema, dict):
            return self._define(kind, schema)
        return _named(self._named, schema)

    def _define(self, kind: str, schema: Mapping[str, Any]) -> _Walk:
        walk: _Walk = _long  # the index of an enum's symbol
        if kind == "fixed":
            walk = _skip(schema["size"])
        elif kind != "enum":
            walk = _record([self.over(field["type"]) for field in schema["fields"]])
        self._named[schema["name"]] = walk
        return walk


_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number and its end. Raises OverflowError if it does not fit a `long`."""
    shift = value = 0
    while (byte := data[at]) > 0x7F:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            break
    value |= data[at] << shift
    if value >> 64:
        raise OverflowError("a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), at + 1


def _long(data: bytes, at: int) -> int:
    return _number(data, at)[1]


def _int(data: bytes, at: int) -> int:
    value, at = _number(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise OverflowError(f"{value} is no int: that has 32 bits")
    return at


def _sized(data: bytes, at: int) -> int:
    size, at = _number(data, at)
    return at + size


def _skip(size: int) -> _Walk:
    return lambda _, at: at + size


def _record(fields: list[_Walk]) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return walk


def _named(walks: Mapping[str, _Walk], name: str) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        return walks[name](data, at)  # looked up late: in a recursive type, the walk does not exist yet

    return walk


def _union(branches: list[_Walk]) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        branch, at = _number(data, at)
        return branches[branch](data, at)

    return walk


def _blocks(item: _Walk) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        count, at = _number(data, at)
        while count:
            if count < 0:  # the block's size in bytes follows
                _, at = _number(data, at)
            for _ in range(abs(count)):
                at = item(data, at)
            count, at = _number(data, at)
        return at

    return walk
