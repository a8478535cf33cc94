"""Fields that are marked `Personal` in a class: which they are, and a value without what is in them. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

from streams.model.application import Application
from streams.model.message import PERSONAL

#: Placeholder for a masked value.
MASK = "(masked)"
#: Fields of answers that have a message's or a row's bytes, and with them whatever is in it.
RAW = frozenset({"hex"})
#: How the base64 of an object or an array of JSON begins.
_BASE64 = re.compile(r"[eW][w-z0-9+/]")


def personal_fields(application: Application) -> frozenset[str]:
    """The names of all marked fields of an application's messages and rows."""
    found: set[str] = set()
    kinds: list[Any] = [route.message for route in application.wiring.routes.values()]
    kinds += [source.kind for source in application.wiring.sources().values()]
    for handler in application.wiring.handlers():
        kinds += [row.table.row for row in handler.rows.values()]
    _look_into(inspect.multi_type_info(kinds), found, set())
    return frozenset(found)


def masked(value: Any, names: frozenset[str]) -> Any:
    """The value, with what is under one of these names masked, and raw bytes left out, at any depth."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{name: _masked(name, getattr(value, name), names) for name in value.__struct_fields__}
        )
    if isinstance(value, dict):
        return {name: _masked(name, each, names) for name, each in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(masked(each, names) for each in value)
    return MASK if isinstance(value, str) and _tells(value, names) else value


def _masked(name: Any, value: Any, names: frozenset[str]) -> Any:
    if name in RAW and isinstance(value, str):
        return ""
    return _hidden(value, names) if name in names else masked(value, names)


def _hidden(value: Any, names: frozenset[str]) -> Any:
    """A value that is all personal. A struct is the pages' own: only its parts may be."""
    if isinstance(value, msgspec.Struct):
        return masked(value, names)
    if isinstance(value, dict):
        return {name: _hidden(each, names) for name, each in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_hidden(each, names) for each in value)
    return MASK if value not in ("", None) else value


def _tells(text: str, names: frozenset[str]) -> bool:
    """Whether it is JSON with something personal in it, or the base64 of that, as bytes of messages are."""
    if text[:1] not in ("{", "["):
        if not _BASE64.match(text):
            return False
        try:
            text = b64decode(text, validate=True).decode()
        except ValueError:
            return False
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return bool(masked(value, names) != value)


def _look_into(kinds: Iterable[inspect.Type], found: set[str], known: set[type]) -> None:
    for kind in kinds:
        if isinstance(kind, inspect.StructType):
            if kind.cls in known:
                continue
            known.add(kind.cls)
            for field in kind.fields:
                if _is_marked(field.type):
                    found.add(field.encode_name)
                _look_into([field.type], found, known)
        else:
            _look_into(_within(kind), found, known)


def _within(kind: inspect.Type) -> list[inspect.Type]:
    """The types that a type is made of."""
    names = ("type", "types", "item_type", "item_types", "key_type", "value_type")
    parts: list[inspect.Type] = []
    for each in (getattr(kind, name, None) for name in names):
        parts += each if isinstance(each, tuple) else [each] if isinstance(each, inspect.Type) else []
    return parts


def _is_marked(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return bool(kind.extra and kind.extra.get(PERSONAL)) or _is_marked(kind.type)
    return isinstance(kind, inspect.UnionType) and any(map(_is_marked, kind.types))
