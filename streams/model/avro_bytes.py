# ruff: noqa: D101, D102 - the classes have the names of types, and the methods of Part
"""A fast Avro encoder and decoder for the schemas that most messages and rows have (docs/adr/0012).

fastavro interprets the schema for each value. This code uses parts that are built once (`plain_avro.py`), and
is compiled with the hot path, where an `i64` is not an object. It encodes Structs directly. To decode, it
converts Avro to MessagePack, from which msgspec builds and checks Structs. In any case of doubt it leaves the
value to fastavro, so that both give the same bytes and values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
from librt.strings import BytesWriter, read_f64_le, write_f64_be, write_f64_le, write_i64_be
from mypy_extensions import i64, u8

from streams.kafka.records.writing import write_sized, write_unsigned
from streams.model.avro_source import ARRAY, BYTES, MAP, TEXT, Source, write_head

#: Bits of a number without its sign, so that its zigzag form is a positive `i64`.
_SHORT: Final = 62
#: Bits of an encoded value's length. Longer ones are left to fastavro; here, they take four times the memory.
_LARGE: Final = 20
#: Bits of the integers that a double represents exactly.
_EXACT: Final = 53
#: Type codes of MessagePack; others are in `avro_source`.
_NONE: Final = 0xC0
_FALSE: Final = 0xC2
_TRUE: Final = 0xC3
_DOUBLE: Final = 0xCB
_LONG: Final = 0xD3
_fields: Final[Callable[[Any], tuple[object, ...]]] = msgspec.structs.astuple
#: Errors from values of a wrong class and from incomplete bytes.
_DOUBTS: Final[tuple[type[Exception], ...]] = (
    ArithmeticError, AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError,
)  # fmt: skip


class Part:
    """A type of a schema."""

    def write(self, value: object, out: BytesWriter) -> None:  # noqa: ARG002 - overridden
        """Add the bytes of a value. Raises one of _DOUBTS."""
        raise TypeError(value)

    def read(self, source: Source, out: BytesWriter) -> None:  # noqa: ARG002 - overridden
        """Add the next value as MessagePack. Raises one of _DOUBTS."""
        raise TypeError(source)


class Boolean(Part):
    def write(self, value: object, out: BytesWriter) -> None:
        if value is True:
            out.append(1)
        elif value is False:
            out.append(0)
        else:
            raise TypeError(value)

    def read(self, source: Source, out: BytesWriter) -> None:
        at = source.at
        byte: i64 = source.data[at]
        source.at = at + 1
        if byte == 1:
            out.append(_TRUE)
        elif byte == 0:
            out.append(_FALSE)
        else:
            raise ValueError(byte)


class Number(Part):
    """An integer of `bits` bits and a sign. The class allows `least` to `most`."""

    def __init__(self, bits: int, least: int, most: int) -> None:
        self.bits: i64 = bits
        self.least: i64 = max(least, -1 << _SHORT)
        self.most: i64 = min(most, (1 << _SHORT) - 1)

    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is not int:
            raise TypeError(value)
        number: i64 = value  # compiled code compares a large number as an object, and ends if that fails
        if not self.least <= number <= self.most:
            raise ValueError(value)
        write_unsigned(out, (number << 1) ^ (number >> 63))

    def read(self, source: Source, out: BytesWriter) -> None:
        number = source.number()
        if not -1 <= number >> self.bits <= 0:
            raise ValueError(number)
        out.append(_LONG)
        write_i64_be(out, number)


class Double(Part):
    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is float:
            write_f64_le(out, value)
        elif type(value) is int:  # such as a number of seconds
            number: i64 = value
            if not -1 <= number >> _EXACT <= 0:
                raise ValueError(value)
            write_f64_le(out, float(number))
        else:
            raise TypeError(value)

    def read(self, source: Source, out: BytesWriter) -> None:
        at = source.at
        out.append(_DOUBLE)
        write_f64_be(out, read_f64_le(source.data, at))
        source.at = at + 8


class Bytes(Part):
    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is not bytes:
            raise TypeError(value)
        write_sized(out, value)

    def read(self, source: Source, out: BytesWriter) -> None:
        source.copy(BYTES, out)


class String(Part):
    """A text. The class allows `shortest` to `longest` characters."""

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest: i64 = shortest
        self.longest: i64 = longest

    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is not str:
            raise TypeError(value)
        length: i64 = len(value)
        if not self.shortest <= length <= self.longest:
            raise ValueError(value)
        data = value.encode()
        # Inlined instead of `write_sized`: a text is never None, and most values are texts.
        size: i64 = len(data)
        write_unsigned(out, size << 1)
        out.write(data)

    def read(self, source: Source, out: BytesWriter) -> None:
        source.copy(TEXT, out)


class Enum(Part):
    """One of the symbols. The class, `str` or an Enum, allows those in `allowed`."""

    def __init__(self, symbols: list[str], kind: type[Any], allowed: Collection[str]) -> None:
        self.packed = [msgspec.msgpack.encode(each) for each in symbols]
        self.kind = kind
        self.numbers = {each: place for place, each in enumerate(symbols) if each in allowed}

    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is not self.kind:
            raise TypeError(value)
        symbol: Any = value
        if self.kind is not str:  # a member's own `value` and `__eq__` may be overridden
            symbol = symbol._value_
        number: i64 = self.numbers[symbol]
        write_unsigned(out, number << 1)

    def read(self, source: Source, out: BytesWriter) -> None:
        out.write(self.packed[source.count()])


class Optional(Part):
    """A union of null and another type."""

    def __init__(self, other: Part, null: int) -> None:
        self.other = other
        self.null: i64 = null
        self.none: u8 = u8(null << 1)
        self.some: u8 = u8((1 - null) << 1)

    def write(self, value: object, out: BytesWriter) -> None:
        if value is None:
            out.append(self.none)
        else:
            out.append(self.some)
            self.other.write(value, out)

    def read(self, source: Source, out: BytesWriter) -> None:
        number = source.count()
        if number == self.null:
            out.append(_NONE)
        elif number > 1:
            raise ValueError(number)
        else:
            self.other.read(source, out)


class Array(Part):
    def __init__(self, items: Part) -> None:
        self.items = items

    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is not tuple and type(value) is not list:
            raise TypeError(value)
        items = list(value)  # another thread may change it
        count: i64 = len(items)
        if count:
            write_unsigned(out, count << 1)
            for each in items:
                self.items.write(each, out)
        out.append(0)

    def read(self, source: Source, out: BytesWriter) -> None:
        count = source.count()
        write_head(ARRAY, count, out)
        for _ in range(count):
            self.items.read(source, out)
        if count and source.number() != 0:
            raise ValueError(count)


class Map(Part):
    def __init__(self, keys: Part, values: Part) -> None:
        self.keys = keys
        self.values = values

    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is not dict:
            raise TypeError(value)
        items = list(value.items())
        count: i64 = len(items)
        if count:
            write_unsigned(out, count << 1)
            for key, each in items:
                self.keys.write(key, out)
                self.values.write(each, out)
        out.append(0)

    def read(self, source: Source, out: BytesWriter) -> None:
        count = source.count()
        write_head(MAP, count, out)
        for _ in range(count):
            self.keys.read(source, out)
            self.values.read(source, out)
        if count and source.number() != 0:
            raise ValueError(count)


class _Field:
    """A field of a record. `head` holds the MessagePack bytes before its value."""

    def __init__(self, head: bytes, place: int, part: Part) -> None:
        self.head = head
        self.place: i64 = place
        self.part = part


class Record(Part):
    """A Struct. `fields` are the schema's fields: name, index in the class, type."""

    def __init__(self, kind: type[Any], fields: list[tuple[str, int, Part]]) -> None:
        self.kind = kind
        self.fields: list[_Field] = []
        head = b"\xde" + len(fields).to_bytes(2, "big")
        for name, place, part in fields:
            self.fields.append(_Field(head + msgspec.msgpack.encode(name), place, part))
            head = b""

    def write(self, value: object, out: BytesWriter) -> None:
        if type(value) is not self.kind:
            raise TypeError(value)
        values = _fields(value)
        for field in self.fields:
            field.part.write(values[field.place], out)

    def read(self, source: Source, out: BytesWriter) -> None:
        for field in self.fields:
            out.write(field.head)
            field.part.read(source, out)


class PlainAvro:
    """Encodes and decodes values of one class with one schema."""

    def __init__(self, part: Part, kind: type[Any], *, sure: bool) -> None:
        """`sure` means that the parts check all constraints of the class, so values survive a round trip."""
        self._part = part
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(kind).decode
        self.sure = sure

    def write(self, value: object) -> bytes | None:
        """The bytes of a value; None if fastavro must encode it or raise the error."""
        out = BytesWriter()
        try:
            self._part.write(value, out)
        except _DOUBTS:
            return None
        return out.getvalue()

    def read(self, data: bytes) -> Any:
        """The value that all of these bytes encode; None if fastavro must decode them or raise the error."""
        if len(data) >> _LARGE:
            return None
        source, out = Source(data), BytesWriter()
        try:
            self._part.read(source, out)
            if source.at == len(data):
                return self._decode(out.getvalue())
        except _DOUBTS:
            pass
        return None
