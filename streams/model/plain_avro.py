"""Builds the parts of `avro_bytes.py` for a class and its schema."""

from __future__ import annotations

from typing import Any

from msgspec import inspect

from streams.model import avro_bytes as parts

_BITS = {"int": 31, "long": 63}
_PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
#: Longer than any text.
_ANY = 1 << 60


def plain_avro(kind: type[Any], schema: Any) -> parts.PlainAvro | None:
    """An encoder and decoder for a class and a schema that fastavro has parsed; None if only fastavro
    supports the schema, or if the class has other types than the schema.
    """
    made = _Parts()
    try:
        part = made.of(schema, inspect.type_info(kind))
        return parts.PlainAvro(part, kind, sure=made.sure)
    except (NotImplementedError, OverflowError, TypeError, ValueError):  # msgspec's, for unsupported types
        return None


class _Parts:
    """Builds the parts for types. `sure` means that the parts so far check all constraints of the class."""

    def __init__(self) -> None:
        self.sure = True
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, info: inspect.Type) -> parts.Part:
        """The part for a type. Raises NotImplementedError if there is none."""
        while isinstance(info, inspect.Metadata):
            info = info.type
        if isinstance(schema, list):
            return self._optional(schema, info)
        if not isinstance(schema, dict):
            named = schema not in _PRIMITIVE and self._named.get(schema)
            return self.of(named, info) if named else self._scalar(schema, info)
        if "logicalType" in schema:  # fastavro converts such values to other types
            raise NotImplementedError(schema)
        match schema["type"], info:
            case "array", inspect.ListType(of) | inspect.VarTupleType(of):
                self._see(info, type(info)(of))
                return parts.Array(self.of(schema["items"], of))
            case "map", inspect.DictType(keys, values):
                self._see(info, inspect.DictType(keys, values))
                return parts.Map(self.of("string", keys), self.of(schema["values"], values))
            case "enum", inspect.LiteralType() | inspect.EnumType():
                return self._enum(schema, info)
            case "record", inspect.StructType():
                return self._record(schema, info)
            case "array" | "map" | "enum" | "record", _:
                raise NotImplementedError(schema)
        return self.of(schema["type"], info)

    def _scalar(self, name: str, info: inspect.Type) -> parts.Part:
        match name, info:
            case "boolean", inspect.BoolType():
                return parts.Boolean()
            case "int" | "long", inspect.IntType():
                return self._number(_BITS[name], info)
            case "double", inspect.FloatType():
                self._see(info, inspect.FloatType())
                return parts.Double()
            case "bytes", inspect.BytesType():
                self._see(info, inspect.BytesType())
                return parts.Bytes()
            case "string", inspect.StrType(shortest, longest):
                self._see(info, inspect.StrType(shortest, longest))
                return parts.String(shortest or 0, _ANY if longest is None else longest)
        raise NotImplementedError(name)

    def _see(self, info: inspect.Type, checked: inspect.Type) -> None:
        """Clear `sure` if the part checks less (`checked`) than the class requires (`info`)."""
        self.sure = self.sure and info == checked

    def _optional(self, schema: list[Any], info: inspect.Type) -> parts.Part:
        others = [each for each in schema if each != "null"]
        if len(schema) != 2 or len(others) != 1 or not isinstance(info, inspect.UnionType):
            raise NotImplementedError(schema)
        inner = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        if len(info.types) != 2 or len(inner) != 1:
            raise NotImplementedError(schema)
        return parts.Optional(self.of(others[0], inner[0]), schema.index("null"))

    def _number(self, bits: int, info: inspect.IntType) -> parts.Part:
        self._see(info, inspect.IntType(gt=info.gt, ge=info.ge, lt=info.lt, le=info.le))
        least, most = -1 << bits, (1 << bits) - 1
        if info.ge is not None:
            least = max(least, info.ge)
        if info.gt is not None:
            least = max(least, info.gt + 1)
        if info.le is not None:
            most = min(most, info.le)
        if info.lt is not None:
            most = min(most, info.lt - 1)
        return parts.Number(bits, least, most)

    def _enum(self, schema: Any, info: inspect.LiteralType | inspect.EnumType) -> parts.Part:
        self._named[schema["name"]] = schema
        if isinstance(info, inspect.EnumType):
            return parts.Enum(schema["symbols"], info.cls, [each._value_ for each in info.cls])
        return parts.Enum(schema["symbols"], str, [each for each in info.values if isinstance(each, str)])

    def _record(self, schema: Any, info: inspect.StructType) -> parts.Part:
        places = {each.encode_name: place for place, each in enumerate(info.fields)}
        names = [each["name"] for each in schema["fields"]]
        # Records without fields are left to fastavro: a few bytes could encode an array of any length.
        if not names or places.keys() != set(names) or info.array_like or info.tag_field is not None:
            raise NotImplementedError(schema)
        self.sure = self.sure and not hasattr(info.cls, "__post_init__")  # it may have other constraints
        types = [(each["name"], places[each["name"]], each["type"]) for each in schema["fields"]]
        made = [(name, place, self.of(kind, info.fields[place].type)) for name, place, kind in types]
        # Registered last, so that recursive types are left to fastavro: compiled code has no recursion limit.
        self._named[schema["name"]] = schema
        return parts.Record(info.cls, made)
