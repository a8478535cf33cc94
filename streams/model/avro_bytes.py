"""Avro's bytes of plain values, for the schemas that messages and rows mostly have (docs/adr/0061).

fastavro looks at a schema anew for each value. This goes over parts that are made once, and is compiled with
the hot path. It is careful rather than complete: fastavro writes and reads whatever this does not know or
doubts, so both give the same bytes and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from streams.records.writing import unsigned_varint

_DOUBLE: Final = Struct("<d")
_INT: Final = 1 << 31
_LONG: Final = 1 << 63
#: Up to here each whole number is a double.
_EXACT: Final = 1 << 53
#: What values raise that are not of their schema, and bytes that are not whole.
_DOUBTS: Final[tuple[type[Exception], ...]] = (ArithmeticError, LookupError, TypeError, ValueError)


def _zigzag(number: int) -> bytes:
    return unsigned_varint(number << 1 if number >= 0 else ((-number) << 1) - 1)


#: Those of small numbers, such as lengths.
_SMALL: Final = [_zigzag(number) for number in range(4096)]


def _number(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 4096 else _zigzag(number)


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

    def take(self, size: int) -> bytes:
        """So many bytes. Raises ValueError when there are fewer."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise ValueError(size)
        found = self.data[self.at : end]
        self.at = end
        return found


class _Part:
    """A type of a schema."""

    def write(self, value: object, out: list[bytes]) -> None:  # noqa: ARG002 - overridden
        """Add the bytes of a value. Raises one of _DOUBTS."""
        raise TypeError(value)

    def read(self, source: _Source) -> object:
        """The value that comes next. Raises one of _DOUBTS."""
        raise TypeError(source)


class _Boolean(_Part):
    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not bool:
            raise TypeError(value)
        out.append(b"\1" if value else b"\0")

    def read(self, source: _Source) -> object:
        byte = source.take(1)[0]
        if byte > 1:
            raise ValueError(byte)
        return byte == 1


class _Number(_Part):
    def __init__(self, bound: int) -> None:
        self.bound = bound

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not int or not -self.bound <= value < self.bound:
            raise ValueError(value)
        out.append(_number(value))

    def read(self, source: _Source) -> object:
        number = source.number()
        if not -self.bound <= number < self.bound:
            raise ValueError(number)
        return number


class _Double(_Part):
    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is float:
            out.append(_DOUBLE.pack(value))
        elif type(value) is int and -_EXACT <= value <= _EXACT:  # such as a number of seconds
            out.append(_DOUBLE.pack(float(value)))
        else:
            raise TypeError(value)

    def read(self, source: _Source) -> object:
        return _DOUBLE.unpack(source.take(8))[0]


class _Bytes(_Part):
    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not bytes:
            raise TypeError(value)
        out.append(_number(len(value)))
        out.append(value)

    def read(self, source: _Source) -> object:
        return source.take(source.number())


class _String(_Part):
    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not str:
            raise TypeError(value)
        data = value.encode()
        out.append(_number(len(data)))
        out.append(data)

    def read(self, source: _Source) -> object:
        return source.take(source.number()).decode()


class _Enum(_Part):
    def __init__(self, symbols: list[str]) -> None:
        self.symbols = symbols
        self.numbers = {symbol: _number(number) for number, symbol in enumerate(symbols)}

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not str:
            raise TypeError(value)
        out.append(self.numbers[value])

    def read(self, source: _Source) -> object:
        number = source.number()
        if number < 0:
            raise ValueError(number)
        return self.symbols[number]


class _Optional(_Part):
    """A union of null and another type."""

    def __init__(self, other: _Part, null: int) -> None:
        self.other = other
        self.null = null
        self.none, self.some = _number(null), _number(1 - null)

    def write(self, value: object, out: list[bytes]) -> None:
        if value is None:
            out.append(self.none)
        elif type(value) is tuple:  # for fastavro it has the name of a type
            raise TypeError(value)
        else:
            out.append(self.some)
            self.other.write(value, out)

    def read(self, source: _Source) -> object:
        number = source.number()
        if number == self.null:
            return None
        if number != 1 - self.null:
            raise ValueError(number)
        return self.other.read(source)


class _Array(_Part):
    def __init__(self, items: _Part) -> None:
        self.items = items

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is tuple:
            value = list(value)
        if type(value) is not list:
            raise TypeError(value)
        if value:
            out.append(_number(len(value)))
            for each in value:
                self.items.write(each, out)
        out.append(b"\0")

    def read(self, source: _Source) -> object:
        found: list[object] = []
        while (count := source.number()) != 0:
            if count < 0:
                raise ValueError(count)
            for _ in range(count):
                found.append(self.items.read(source))  # noqa: PERF401 - a list of a hostile count is never made
        return found


class _Map(_Part):
    def __init__(self, values: _Part) -> None:
        self.values = values

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not dict:
            raise TypeError(value)
        if value:
            out.append(_number(len(value)))
            for key, each in value.items():
                _STRING.write(key, out)
                self.values.write(each, out)
        out.append(b"\0")

    def read(self, source: _Source) -> object:
        found: dict[object, object] = {}
        while (count := source.number()) != 0:
            if count < 0:
                raise ValueError(count)
            for _ in range(count):
                key = _STRING.read(source)
                found[key] = self.values.read(source)
        return found


class _Record(_Part):
    def __init__(self, fields: list[tuple[str, _Part]]) -> None:
        self.fields = fields

    def write(self, value: object, out: list[bytes]) -> None:
        if type(value) is not dict:
            raise TypeError(value)
        for name, part in self.fields:
            part.write(value[name], out)

    def read(self, source: _Source) -> object:
        found: dict[str, object] = {}
        for name, part in self.fields:
            found[name] = part.read(source)
        return found


_STRING: Final = _String()
_SCALARS: Final[Mapping[str, _Part]] = {
    "boolean": _Boolean(),
    "int": _Number(_INT),
    "long": _Number(_LONG),
    "double": _Double(),
    "bytes": _Bytes(),
    "string": _STRING,
}


class PlainAvro:
    """Values of one schema."""

    def __init__(self, part: _Part) -> None:
        self._part = part

    def write(self, value: object) -> bytes | None:
        """The bytes of a value; None: fastavro is to write it, or to say why not."""
        out: list[bytes] = []
        try:
            self._part.write(value, out)
        except _DOUBTS:
            return None
        return b"".join(out)

    def read(self, data: bytes) -> Any:
        """The value of these bytes, to their end; None: fastavro is to read them, or to say why not."""
        source = _Source(data)
        try:
            found = self._part.read(source)
        except _DOUBTS:
            return None
        return found if source.at == len(data) else None


def plain_avro(schema: Any) -> PlainAvro | None:
    """Return a reader and writer of a schema that fastavro has parsed; None: only fastavro can."""
    try:
        return PlainAvro(_part_of(schema, {}))
    except NotImplementedError:
        return None


def _part_of(schema: Any, named: dict[str, _Part]) -> _Part:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(schema) != 2 or len(others) != 1:
            raise NotImplementedError(schema)
        return _Optional(_part_of(others[0], named), schema.index("null"))
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _part_of(kind, named)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if not isinstance(schema, dict):
        if schema not in named:  # null, or within its own type: compiled code has no bound for that
            raise NotImplementedError(schema)
        return named[schema]
    if kind == "array":
        return _Array(_part_of(schema["items"], named))
    if kind == "map":
        return _Map(_part_of(schema["values"], named))
    if kind == "enum":
        part: _Part = _Enum(list(schema["symbols"]))
    elif kind == "record" and schema["fields"]:  # an array of empty ones has any length in a few bytes
        part = _Record([(field["name"], _part_of(field["type"], named)) for field in schema["fields"]])
    else:
        raise NotImplementedError(schema)
    named[schema["name"]] = part
    return part
