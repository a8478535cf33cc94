"""A message as a form: its fields by the schema of its class, and a message from a form's fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

#: Fields and characters of a form at most: what is larger is edited as JSON.
MOST_FIELDS, MOST_CHARACTERS = 60, 200
#: Begins the name of a field's input.
PREFIX = "field:"
#: A line of a docstring's attributes, with those that go on with it.
_DOCUMENTED = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)


class EditField(msgspec.Struct, frozen=True, kw_only=True):
    """A field: dotted name, value as text, kind (string, integer, number or boolean), and a description."""

    name: str
    text: str
    kind: str
    about: str


def fields_of(value: Any, message: type[msgspec.Struct] | None) -> list[EditField]:
    """The fields of a decoded message; none where it has too many or too long ones."""
    schema = _schema(message)
    found = [
        EditField(name=name, text=_text(leaf), kind=_kind(leaf), about=_about(message, schema, steps))
        for name, steps, leaf in _leaves(value)
        if leaf is not None
    ]
    too_long = any(len(each.text) > MOST_CHARACTERS or not each.text.isprintable() for each in found)
    return [] if too_long or len(found) > MOST_FIELDS else found


def with_fields(value: Any, given: Mapping[str, str]) -> Any:
    """The message with the texts of a form's fields, each of the kind that it was. Raises ValueError."""
    return _replaced(value, "", given)


def skeleton(message: type[msgspec.Struct] | None) -> Any:
    """A message of the class with empty values; None without a class."""
    schema = _schema(message)
    return None if schema is None else _empty(schema, schema)


def _leaves(
    value: Any, name: str = "", steps: tuple[str | int, ...] = ()
) -> Iterator[tuple[str, tuple[str | int, ...], Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{name}.{key}" if name else key, (*steps, key))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _leaves(each, f"{name}[{place}]", (*steps, place))
    else:
        yield name, steps, value


def _replaced(value: Any, name: str, given: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(each, f"{name}.{key}" if name else key, given) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, f"{name}[{place}]", given) for place, each in enumerate(value)]
    text = given.get(PREFIX + name)
    if text is None or value is None or isinstance(value, str):
        return value if text is None else text
    try:
        return msgspec.convert(msgspec.json.decode(text.strip().encode()), type(value))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{name} is {text!r}: it takes a value of type {_kind(value)}") from error


def _text(leaf: Any) -> str:
    return leaf if isinstance(leaf, str) else msgspec.json.encode(leaf).decode()


def _kind(leaf: Any) -> str:
    return {bool: "boolean", int: "integer", float: "number"}.get(type(leaf), "string")


def _schema(message: type[msgspec.Struct] | None) -> dict[str, Any] | None:
    """The JSON schema of a class; None where it has none."""
    try:
        return None if message is None else msgspec.json.schema(message)
    except TypeError:
        return None


def _resolved(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node without its references; of alternatives the first that is not null."""
    for each in node.get("anyOf", ()):
        if each.get("type") != "null":
            return _resolved(each, schema)
    if "$ref" in node:
        found: Mapping[str, Any] = schema["$defs"][node["$ref"].rpartition("/")[2]]
        return _resolved(found, schema)
    return node


def _about(
    message: type[msgspec.Struct] | None, schema: Mapping[str, Any] | None, steps: tuple[str | int, ...]
) -> str:
    """The description of a field by its schema, else by the docstring of its class, or of one it inherits."""
    node: Mapping[str, Any] = schema or {}
    docs = "\n".join(inspect.cleandoc(each.__doc__ or "") for each in message.__mro__) if message else ""
    text = ""
    for step in steps:
        node = _resolved(node, schema or {})
        docs = docs or inspect.cleandoc(node.get("description", ""))
        if isinstance(step, str):
            known = {
                name: " ".join(each[2].split())
                for each in _DOCUMENTED.finditer(docs)
                for name in each[1].split(", ")
            }
            node = node.get("properties", {}).get(step, {})
            text = node.get("description", "") or known.get(step, "")
        else:
            node = node.get("items", {})
        docs = ""
    return str(text)


def _empty(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    if "default" in node:
        return node["default"]
    if any(each.get("type") == "null" for each in node.get("anyOf", ())):
        return None
    node = _resolved(node, schema)
    if "enum" in node:
        return node["enum"][0]
    if "properties" in node:
        return {name: _empty(each, schema) for name, each in node["properties"].items()}
    empty: dict[str, Any] = {"integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}
    return empty.get(node.get("type", ""), "")
