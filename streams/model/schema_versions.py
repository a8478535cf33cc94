"""Frozen schemas: a folder with every version of the Avro schema of each topic and table.

`<kind>/<topic or table>/<version>.avsc`. The highest version is the one that is written; the older ones are
what may still lie in a topic. A version never changes. When it and the one before cannot read each other, the
reason why it was frozen all the same lies beside it, in `<version>.reason.txt`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.resources.abc import Traversable
from typing import Any

from streams.errors import WiringError
from streams.model.avro_types import NoAvro, derived_schema

#: The folders of a kind each. They are for the reader: a subject is found by its name.
KINDS = ("events", "commands", "replies", "rows")
SCHEMA, REASON = ".avsc", ".reason.txt"


class ClassAndSchemaDiffer(WiringError):
    """A class has other fields than its newest frozen schema: what it holds would be lost in silence."""


class FrozenSchemas:
    """The frozen schemas under a folder, which need not exist."""

    def __init__(self, folder: Traversable) -> None:
        self._folder = folder

    def subjects(self) -> Iterator[tuple[str, str]]:
        """Kind and name of each topic and table that has a frozen schema."""
        for kind in KINDS:
            if (folder := self._folder / kind).is_dir():
                found = (each.name for each in folder.iterdir() if each.is_dir() and _numbers(each))
                yield from ((kind, name) for name in sorted(found))

    def numbers(self, kind: str, subject: str) -> list[int]:
        """The numbers of a topic's or table's versions, the lowest first; none when nothing is frozen."""
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
    """For a service that has frozen nothing yet. Raises LookupError."""
    raise LookupError(f"{subject} has no frozen schema")


def schema_for(kind: type[Any], subject: str, frozen: Callable[[str], str]) -> str:
    """The schema that values of a class are written with: the newest frozen one, or else the derived one.

    Raises ClassAndSchemaDiffer when fields of one are not in the other, and NoAvro.
    """
    try:
        text = frozen(subject)
    except LookupError:
        return derived_schema(kind)
    try:
        derived = _records(json.loads(derived_schema(kind)))
    except NoAvro:
        return text  # a schema that was written by hand may say what cannot be derived
    found = _records(json.loads(text))
    for name, fields in derived.items():
        if name in found and (differ := sorted(fields ^ found[name])):
            raise ClassAndSchemaDiffer(
                f"{subject}: class {name} and its newest frozen schema differ in"
                f" {', '.join(differ)}: `steadfaust schemas write` freezes that of the class as the next one"
            )
    return text


def _records(schema: Any) -> dict[str, set[str]]:
    """The records of a schema by their short names, with the names of their fields."""
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
