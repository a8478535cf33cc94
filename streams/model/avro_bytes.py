# ruff: noqa: D101, D102 - the classes have the names of types, and the methods of Part
"""Avro's bytes of plain values, for the schemas that messages and rows mostly have (docs/adr/0061).

fastavro looks at a schema anew for each value. This goes over parts that are made once (`plain_avro.py`), and
is compiled with the hot path. It writes Structs as they are, and reads what `msgspec.convert` makes Structs
of. It is careful rather than complete: fastavro writes and reads whatever this does not know or doubts, so
both give the same bytes and values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from struct import Struct
from typing import Any, Final

import msgspec

from streams.records.writing import unsigned_varint

_DOUBLE: Final = Struct("<d")
#: Bits of numbers that compiled code compares without objects: comparing others may fail where the stack is
#: full, and then ends the process.
_SHORT: Final = 61
#: Of whole numbers that a double can be; and of lengths, which are numbers that anybody can write.
_EXACT: Final = 53
_LENGTH: Final = 40
_fields: Final[Callable[[Any], tuple[Any, ...]]] = msgspec.structs.astuple
#: What values raise that are not of their class, and bytes that are not whole.
_DOUBTS: Final[tuple[type[Exception], ...]] = (
    ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip


def _number(number: int) -> bytes:
    return unsigned_varint(number << 1 if number >= 0 else ((-number) << 1) - 1)


class _Source:
    """Bytes, and how far they are read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self) -> int:
        """A zigzag number. Raises ValueError for one of more than ten bytes."""
        data, at = self.data, self.at
        byte = data[at]
        at += 1
        found, shift = byte & 0x7F, 7
        while byte >= 0x80:
            if shift > 63:  # anybody can write a number that does not end
                raise ValueError(at)
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
        self.at = at
        return (found >> 1) ^ -(found & 1)

    def count(self) -> int:
        """A number that is not negative, such as a length. Raises ValueError for others, and for huge."""
        number = self.number()
        if number >> _LENGTH != 0:
            raise ValueError(number)
        return number

    def take(self, size: int) -> bytes:
        """So many bytes. Raises ValueError when there are fewer."""
        end = self.at + size
        if end > len(self.data):
            raise ValueError(size)
        found = self.data[self.at : end]
        self.at = end
        return found


class Part:
    """A type of a schema."""

    def write(self, value: object, out: list[bytes]) -> None:  # noqa: ARG002 - overridden
        """Add the bytes of a value. Raises one of _DOUBTS."""
        raise TypeError(value)

    def read(self, source: _Source) -> object:
        """The value that comes next. Raises one of _DOUBTS."""
        raise TypeError(source)


class Boolean(Part):
    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not bool:
            raise TypeError(value)
        out.append(b"\1" if value else b"\0")

    def read(self, source: _Source) -> object:
        byte = source.take(1)[0]
        if byte > 1:
            raise ValueError(byte)
        return byte == 1


class Number(Part):
    """A whole number, of so many bits and a sign. Its class allows `least` to `most`."""

    def __init__(self, bits: int, least: int, most: int) -> None:
        self.bits = bits
        self.least = max(least, -1 << min(bits, _SHORT))
        self.most = min(most, (1 << min(bits, _SHORT)) - 1)

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not int or not -1 <= value >> _SHORT <= 0:
            raise ValueError(value)
        if not self.least <= value <= self.most:
            raise ValueError(value)
        out.append(_number(value))

    def read(self, source: _Source) -> object:
        number = source.number()
        if not -1 <= number >> self.bits <= 0:
            raise ValueError(number)
        return number


class Double(Part):
    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is float:
            out.append(_DOUBLE.pack(value))
        elif type(value) is int and -1 <= value >> _EXACT <= 0:  # such as a number of seconds
            out.append(_DOUBLE.pack(float(value)))
        else:
            raise TypeError(value)

    def read(self, source: _Source) -> object:
        return _DOUBLE.unpack(source.take(8))[0]


class Bytes(Part):
    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not bytes:
            raise TypeError(value)
        out.append(unsigned_varint(2 * len(value)) + value)

    def read(self, source: _Source) -> object:
        return source.take(source.count())


class String(Part):
    """A text. Its class allows one of `shortest` to `longest` characters."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest = shortest
        self.longest = longest

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not str or not self.shortest <= len(value) <= self.longest:
            raise ValueError(value)
        data = value.encode()
        out.append(unsigned_varint(2 * len(data)) + data)

    def read(self, source: _Source) -> object:
        return source.take(source.count()).decode()


class Enum(Part):
    """One of the symbols. Its class, which is `str` or an Enum, allows those of `allowed`."""

    def __init__(self, symbols: list[str], kind: type[Any], allowed: Collection[str]) -> None:
        self.symbols = symbols
        self.kind = kind
        self.numbers = {each: _number(place) for place, each in enumerate(symbols) if each in allowed}

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not self.kind:
            raise TypeError(value)
        symbol: Any = value
        if self.kind is not str:  # what members say that they are, and equal, may be something else
            symbol = symbol._value_
        out.append(self.numbers[symbol])

    def read(self, source: _Source) -> object:
        return self.symbols[source.count()]


class Optional(Part):
    """A union of null and another type."""

    def __init__(self, other: Part, null: int) -> None:
        self.other = other
        self.null = null
        self.none, self.some = _number(null), _number(1 - null)

    def write(self, value: object, out: list[bytes]) -> None:
        if value is None:
            out.append(self.none)
        else:
            out.append(self.some)
            self.other.write(value, out)

    def read(self, source: _Source) -> object:
        number = source.count()
        if number == self.null:
            return None
        if number != 1 - self.null:
            raise ValueError(number)
        return self.other.read(source)


class Array(Part):
    def __init__(self, items: Part) -> None:
        self.items = items

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not tuple and type(value) is not list:
            raise TypeError(value)
        items = list(value)  # another thread may change it
        if items:
            out.append(unsigned_varint(2 * len(items)))
            for each in items:
                self.items.write(each, out)
        out.append(b"\0")

    def read(self, source: _Source) -> object:
        found: list[object] = []
        while (count := source.count()) != 0:
            for _ in range(count):
                found.append(self.items.read(source))  # noqa: PERF401 - a list of a hostile count is never made
        return found


class Map(Part):
    def __init__(self, keys: Part, values: Part) -> None:
        self.keys = keys
        self.values = values

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not dict:
            raise TypeError(value)
        items = list(value.items())
        if items:
            out.append(unsigned_varint(2 * len(items)))
            for key, each in items:
                self.keys.write(key, out)
                self.values.write(each, out)
        out.append(b"\0")

    def read(self, source: _Source) -> object:
        found: dict[object, object] = {}
        while (count := source.count()) != 0:
            for _ in range(count):
                key = self.keys.read(source)
                found[key] = self.values.read(source)
        return found


class Record(Part):
    """A Struct. `fields` are those of the schema: name, place in the class, type."""

    def __init__(self, kind: type[Any], fields: list[tuple[str, int, Part]]) -> None:
        self.kind = kind
        self.fields = fields

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not self.kind:
            raise TypeError(value)
        values = _fields(value)
        for _, index, part in self.fields:
            part.write(values[index], out)

    def read(self, source: _Source) -> object:
        found: dict[str, object] = {}
        for name, _, part in self.fields:
            found[name] = part.read(source)
        return found


class PlainAvro:
    """Values of one schema and class."""

    def __init__(self, part: Part, *, sure: bool) -> None:
        """`sure`: the parts check all that the class asks for, so what was written reads back as it was."""
        self._part = part
        self.sure = sure

    def write(self, value: object) -> bytes | None:
        """The bytes of a value; None: fastavro is to write it, or to say why not."""
        out: list[bytes] = []
        try:
            self._part.write(value, out)
        except _DOUBTS:
            return None
        return b"".join(out)

    def read(self, data: bytes) -> Any:
        """The value of these bytes, to their end, as `msgspec.convert` takes it; None: fastavro is to read
        them, or to say why not.
        """
        source = _Source(data)
        try:
            found = self._part.read(source)
        except _DOUBTS:
            return None
        return found if source.at == len(data) else None
