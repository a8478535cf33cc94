"""Frozen schemas: a folder with every version of the Avro schema of each topic and table.

Paths are `<kind>/<topic or table>/<version>.avsc`. Workers write the highest version; topics may still
contain older ones. A version never changes. If it and the previous version cannot read each other,
`<version>.reason.txt` states why it was frozen anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.resources.abc import Traversable
from typing import Any

from streams.errors import WiringError
from streams.model.avro_types import NoAvro, derived_schema

#: One folder for each kind. They are for human readers; a subject is found by its name.
KINDS = ("events", "commands", "replies", "rows")
SCHEMA, REASON = ".avsc", ".reason.txt"


class ClassAndSchemaDiffer(WiringError):
    """A class has other fields than its newest frozen schema, so that values would be lost silently."""


class FrozenSchemas:
    """The frozen schemas under a folder, which need not exist."""

    def __init__(self, folder: Traversable) -> None:
        self._folder = folder

    def subjects(self) -> Iterator[tuple[str, str]]:
        """Kind and name of each topic and table with a frozen schema."""
        for kind in KINDS:
            if (folder := self._folder / kind).is_dir():
                found = (each.name for each in folder.iterdir() if each.is_dir() and _numbers(each))
                yield from ((kind, name) for name in sorted(found))

    def numbers(self, kind: str, subject: str) -> list[int]:
        """Version numbers of a topic or table, in ascending order; empty if nothing is frozen."""
        folder = self._folder / kind / subject
        return _numbers(folder) if folder.is_dir() else []

    def latest(self, subject: str) -> str:
        """The current schema of a topic's messages or a table's rows, as text. Raises LookupError."""
        return self.versions(subject)[-1]

    def versions(self, subject: str) -> list[str]:
        """All schemas of a topic or table as text, the oldest first. Raises LookupError."""
        for kind in KINDS:
            folder = self._folder / kind / subject
            if numbers := self.numbers(kind, subject):
                return [(folder / f"{number}{SCHEMA}").read_text("utf-8") for number in numbers]
        raise LookupError(f"{subject} has no frozen schema: `steadfaust schemas write` freezes the first")


def nothing_frozen(subject: str) -> str:
    """Stands for the frozen schemas of a service that has none. Always raises LookupError."""
    raise LookupError(f"{subject} has no frozen schema")


def schema_for(kind: type[Any], subject: str, frozen: Callable[[str], str]) -> str:
    """The schema with which values of a class are written: the newest frozen one, or else the derived one.

    Raises ClassAndSchemaDiffer if the class and the frozen schema have different fields, and NoAvro if
    nothing is frozen and no schema can be derived.
    """
    try:
        text = frozen(subject)
    except LookupError:
        return derived_schema(kind)
    try:
        derived = _records(json.loads(derived_schema(kind)))
    except NoAvro:
        return text  # a handwritten schema may contain what cannot be derived
    found = _records(json.loads(text))
    for name, fields in derived.items():
        if name in found and (differ := sorted(fields ^ found[name])):
            raise ClassAndSchemaDiffer(
                f"{subject}: class {name} and its newest frozen schema differ in"
                f" {', '.join(differ)}: `steadfaust schemas write` freezes that of the class as the next one"
            )
    return text


def _records(schema: Any) -> dict[str, set[str]]:
    """The field names of all records in a schema, by the record's short name."""
    found: dict[str, set[str]] = {}
    if isinstance(schema, list):
        for each in schema:
            found |= _records(each)
    elif isinstance(schema, dict):
        fields = schema.get("fields", ())
        if schema.get("type") == "record":
            found[schema["name"].rpartition(".")[2]] = {field["name"] for field in fields}
        for inner in (schema.get("type"), schema.get("items"), schema.get("values"), *fields):
            found |= _records(inner)
    return found


def _numbers(folder: Traversable) -> list[int]:
    stems = (file.name.removesuffix(SCHEMA) for file in folder.iterdir() if file.name.endswith(SCHEMA))
    return sorted(int(stem) for stem in stems if stem.isdecimal())
