"""Derives the Avro schema of a message or row from its class, which is the only definition of its fields.

| Python                              | Avro                                                                |
|-------------------------------------|---------------------------------------------------------------------|
| `str`, `bool`, `float`, `bytes`     | string, boolean, double, bytes                                      |
| `int`                               | long                                                                |
| `Literal["a", "b"]`, `enum.Enum`    | enum of these texts                                                 |
| `T | None`                          | union with null                                                     |
| `tuple[T, ...]`, `list[T]`          | array                                                               |
| `dict[str, T]`                      | map                                                                 |
| a msgspec Struct                    | record, named like the class, in the namespace of the outermost one |

A field's documentation comes from the `Attributes:` of its class's docstring, or else from
`Annotated[..., msgspec.Meta(description=...)]`. A Literal's enum is named after its record and field, unless
`Annotated[Literal[...], msgspec.Meta(title=...)]` names it; a description beside a title documents the enum.
`Annotated[T, msgspec.Meta(extra={"aliases": ["old"]})]` also reads values written under a former field name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import msgspec

from streams.errors import WiringError
from streams.model.message import NAMESPACE
from streams.model.read_back import require_defaults

_SCALARS: Mapping[Any, str] = {str: "string", bool: "boolean", int: "long", float: "double", bytes: "bytes"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ATTRIBUTE = re.compile(r"    (\w+(?:, \w+)*): (.+)")
#: What to use instead of types that have no Avro type here.
_ADVICE: Mapping[str, str] = {
    "datetime": "a float of epoch seconds, or a str in RFC 3339",
    "date": "a str such as 2026-01-31",
    "timedelta": "a float of seconds",
    "Decimal": "an int of the smallest unit, such as cents",
    "UUID": "a str",
    "set": "tuple[T, ...]: a set has no order, and its bytes would differ from time to time",
    "frozenset": "tuple[T, ...]: a set has no order, and its bytes would differ from time to time",
    "Any": "the type that it has; for anything at all, bytes of JSON",
    "object": "the type that it has; for anything at all, bytes of JSON",
}


class NoAvro(WiringError):
    """A class has a field without a derivable Avro schema. The text says where, why and what to do."""


def derived_schema(kind: type[Any]) -> str:
    """The Avro schema of a message, a row or any other Struct, as JSON text. Raises NoAvro, and WiringError
    for a default that no schema can express.
    """
    require_defaults(kind)
    namespace = getattr(kind, "NAMESPACE", NAMESPACE)
    return json.dumps(_Derivation(namespace).record(kind, kind.__name__), ensure_ascii=False)


class _Derivation:
    """Derives one schema. A named type is defined where it first occurs; later, its name refers to it."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._made: dict[str, object] = {}

    def record(self, kind: type[Any], where: str) -> dict[str, Any] | str:
        """A Struct as a record."""
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            raise NoAvro(f"{where} is {kind!r}, which is not a msgspec Struct: derive it from Message or Row")
        _refuse_other_forms(kind, where)
        if self._is_made(kind.__name__, kind, where):
            return kind.__name__
        outermost = {"namespace": self._namespace} if len(self._made) == 1 else {}
        head = {"type": "record", **outermost, "name": kind.__name__, **_doc(_summary(kind))}
        docs = _attributes(kind)
        fields = msgspec.structs.fields(kind)
        return {**head, "fields": [self._field(kind, each, docs, f"{where}.{each.name}") for each in fields]}

    def _field(
        self, kind: type[Any], field: msgspec.structs.FieldInfo, docs: Mapping[str, str], where: str
    ) -> dict[str, Any]:
        name = field.encode_name
        if not _NAME.fullmatch(name):
            raise NoAvro(
                f"{where} is called {name!r}, which is not a valid Avro name: use letters, digits and _"
            )
        plain, meta = _without_annotations(field.type)
        enum_name = f"{kind.__name__}{_capitals(name)}"
        null_first = field.default in (msgspec.NODEFAULT, None)
        made = self._type(plain, meta, where, enum_name, null_first=null_first)
        try:
            has_default, default = _default(field)
        except TypeError as error:
            raise NoAvro(f"{where} has a default that no schema can have: {error}") from error
        aliases = _aliases(field.type, where)
        doc = docs.get(field.name) or ("" if meta.get("title") else meta.get("description", ""))
        return {
            "name": name,
            "type": made,
            **({"default": default} if has_default else {}),
            **aliases,
            **_doc(doc),
        }

    def _type(
        self, kind: Any, meta: Mapping[str, str], where: str, enum_name: str, *, null_first: bool = True
    ) -> Any:
        origin, args = get_origin(kind), get_args(kind)
        if kind in _SCALARS:
            return _SCALARS[kind]
        if origin is Literal:
            return self._enum(meta.get("title") or enum_name, args, meta.get("description", ""), where)
        if origin in (Union, UnionType):
            return self._optional(args, where, enum_name, null_first=null_first)
        if origin is list or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
            return {"type": "array", "items": self._inner(args[0], f"{where}[]", enum_name)}
        if origin is dict:
            if _without_annotations(args[0])[0] is not str:
                raise NoAvro(f"{where} is {_shown(kind)}, but the keys of an Avro map are texts: use str")
            return {"type": "map", "values": self._inner(args[1], f"{where}[]", enum_name)}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.record(kind, where)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return self._enum(kind.__name__, tuple(each.value for each in kind), _summary(kind), where, kind)
        raise NoAvro(f"{where} is {_shown(kind)}, which has no Avro type here: use {_advice(kind)}")

    def _inner(self, kind: Any, where: str, enum_name: str) -> Any:
        return self._type(*_without_annotations(kind), where, enum_name)

    def _optional(self, args: tuple[Any, ...], where: str, enum_name: str, *, null_first: bool) -> list[Any]:
        others = [each for each in args if each is not NoneType]
        if len(others) != 1 or len(args) != 2:
            shown = " | ".join(map(_shown, args))
            raise NoAvro(
                f"{where} is {shown}, and a reader could not tell which: only T | None is a union here. "
                "Make it several optional fields, or a message of its own for each"
            )
        made = self._inner(others[0], where, enum_name)
        return ["null", made] if null_first else [made, "null"]  # a default must have a union's first type

    def _enum(
        self, name: str, symbols: tuple[Any, ...], doc: str, where: str, identity: object = None
    ) -> dict[str, Any] | str:
        if wrong := [each for each in symbols if not isinstance(each, str) or not _NAME.fullmatch(each)]:
            raise NoAvro(
                f"{where} can be {wrong[0]!r}, which is not a valid Avro enum symbol: use texts of letters, "
                "digits and _ that begin with no digit, or a str"
            )
        if self._is_made(name, symbols if identity is None else identity, where):
            return name
        return {"type": "enum", "name": name, **_doc(doc), "symbols": list(symbols)}

    def _is_made(self, name: str, what: object, where: str) -> bool:
        """Whether a type with this name is defined already. Raises NoAvro if it is a different type."""
        if name in self._made:
            if self._made[name] != what:
                raise NoAvro(f"{where} makes a second type {name} of another form: rename it")
            return True
        self._made[name] = what
        return False


def _refuse_other_forms(kind: type[msgspec.Struct], where: str) -> None:
    form = kind.__struct_config__
    if form.tag is not None or form.array_like:
        given = "tag" if form.tag is not None else "array_like"
        raise NoAvro(
            f"{where} is the Struct {kind.__name__} with {given}=..., which Avro does without: omit it"
        )


def _without_annotations(kind: Any) -> tuple[Any, dict[str, str]]:
    """The bare type, and the title and description of its `msgspec.Meta`."""
    meta: dict[str, str] = {}
    while get_origin(kind) is Annotated or isinstance(kind, NewType):
        if isinstance(kind, NewType):
            kind = kind.__supertype__
            continue
        for each in kind.__metadata__:
            if isinstance(each, msgspec.Meta):
                docs = {"title": each.title, "description": each.description}
                meta.update({key: text for key, text in docs.items() if text and key not in meta})
        kind = kind.__origin__
    return kind, meta


def _aliases(kind: Any, where: str) -> dict[str, list[str]]:
    """Former names of a field, as an item for the schema. Raises NoAvro if they are not a list of names."""
    found = []
    while get_origin(kind) is Annotated:
        metas = [each for each in kind.__metadata__ if isinstance(each, msgspec.Meta)]
        found += [meta.extra["aliases"] for meta in metas if meta.extra and "aliases" in meta.extra]
        kind = kind.__origin__
    for names in found:
        if not isinstance(names, list) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
            raise NoAvro(f"{where} has the aliases {names!r}: give a list of the field's former names")
    return {"aliases": found[0]} if found else {}


def _default(field: msgspec.structs.FieldInfo) -> tuple[bool, Any]:
    """Whether a field has a constant default, and the default as JSON."""
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory in (list, dict, tuple):
        value = field.default_factory()
    else:
        return False, msgspec.NODEFAULT  # a factory may return a new time or id each time
    return True, _json_default(value)


def _json_default(value: Any) -> Any:
    """A default as JSON for a schema. Bytes become a text of code points up to 255."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    if isinstance(plain, dict):
        return {name: _json_default(each) for name, each in plain.items()}
    if isinstance(plain, list | tuple):
        return [_json_default(each) for each in plain]
    return plain


def _doc(text: str) -> dict[str, str]:
    return {"doc": text} if text else {}


def _summary(kind: type[Any]) -> str:
    """The first paragraph of a class's own docstring, as one line."""
    paragraph = cleandoc(kind.__dict__.get("__doc__") or "").split("\n\n")[0]
    return " ".join(paragraph.replace("`", "").split())


def _attributes(kind: type[Any]) -> dict[str, str]:
    """The descriptions of fields in the docstrings of a class and its bases, the nearest first."""
    docs: dict[str, str] = {}
    for each in kind.__mro__:
        for name, text in _told(cleandoc(each.__dict__.get("__doc__") or "")):
            docs.setdefault(name, text)
    return docs


def _told(docstring: str) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    text = ""
    for line in docstring.partition("\nAttributes:\n")[2].split("\n"):
        if begins := _ATTRIBUTE.fullmatch(line):
            yield from ((name, _sentence(text)) for name in names)
            names, text = begins[1].split(", "), begins[2]
        elif line.startswith("     "):
            text = f"{text} {line.strip()}"
        else:
            break
    yield from ((name, _sentence(text)) for name in names)


def _sentence(text: str) -> str:
    """Capitalize an attribute's description, unless it begins with code; remove backticks."""
    plain = text.replace("`", "")
    return plain if text.startswith("`") else plain[:1].upper() + plain[1:]


def _capitals(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _advice(kind: Any) -> str:
    name = getattr(get_origin(kind) or kind, "__name__", str(kind))
    if name == "tuple":
        return "tuple[T, ...] for any number of one type, or a Struct for several types"
    return _ADVICE.get(
        name, "str, int, float, bool, bytes, a Literal, a Struct, or tuples and dicts of these"
    )
