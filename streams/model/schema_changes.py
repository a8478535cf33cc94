"""Finds changes between two versions of a schema, and whether the versions can read each other.

This is slow. Workers use it once at the start, and for data that they cannot read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import fastavro
from fastavro.schema import to_parsing_canonical_form

#: Maximum columns of a line in a frozen schema, if it can be broken.
_WIDTH = 110


def differences(frozen: str, derived: str) -> list[str]:
    """Texts for the differences between a class (`derived`) and its frozen schema: names, types, order,
    symbols and defaults.

    Ignores documentation, and defaults that only the class has. These change neither what is written nor what
    is read, and are frozen with the next version.
    """
    found = list(_differences(_parsed(frozen), _parsed(derived), ""))
    if not found and canonical(frozen) != canonical(derived):
        found.append("it is written another way")
    return found


def canonical(schema: str) -> str:
    """The parsing canonical form, from which the fingerprint is computed."""
    return str(to_parsing_canonical_form(json.loads(schema)))


def unreadable(older: str, newer: str) -> list[str]:
    """Why one of two consecutive versions cannot read what the other writes; empty if both can."""
    return [
        *(f"the new version cannot read the one before: {why}" for why in _against(newer, older)),
        *(f"the version before cannot read the new one: {why}" for why in _against(older, newer)),
    ]


def version_perils(older: str, newer: str) -> list[str]:
    """What is lost or cannot be read while workers with both versions of a class run; empty if nothing."""
    if older == newer or not (_is_record(older) and _is_record(newer)):
        return []
    return unreadable(older, newer) + [renamed(*each) for each in renames(older, newer).items()]


def renamed(gone: str, came: list[str]) -> str:
    """Text for a possible rename."""
    return f"{gone} is gone and {' and '.join(came)} new: if it is a rename, its values are lost"


def renames(older: str, newer: str) -> dict[str, list[str]]:
    """Fields that may have been renamed: for each removed field, the new fields of the same record.

    If both fields have defaults, the versions can read each other, but the value is lost silently: readers
    skip the old name and use the default of the new one. Renames that are declared by aliases are left out.
    """
    return dict(_renames(_parsed(older), _parsed(newer), ""))


def unreadable_versions(versions: list[str]) -> dict[int, list[str]]:
    """Results of `unreadable` for all consecutive versions of a subject, by the newer one's number. Versions
    count from 1.
    """
    pairs = enumerate(pairwise(versions), 2)
    return {number: why for number, (older, newer) in pairs if (why := unreadable(older, newer))}


def printed(schema: Any, indent: int = 0, used: int = 0) -> str:
    """A schema as formatted JSON for files: an object or a list stays on one line if it fits.

    `indent` is the indentation of the schema; `used` is the number of columns used in its first line.
    """
    short = json.dumps(schema, ensure_ascii=False)
    parts = (
        schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    )
    if not parts or (indent and used + len(short) <= _WIDTH):
        return short
    opening, closing = "{}" if isinstance(schema, dict) else "[]"
    lines = []
    for key, part in parts:
        label = f"{json.dumps(key)}: " if isinstance(schema, dict) else ""
        lines.append(" " * (indent + 2) + label + printed(part, indent + 2, indent + 2 + len(label) + 1))
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * indent + closing


def _is_record(schema: str) -> bool:
    """Whether it is an Avro record. The schema of a class in plain JSON is not."""
    return bool(json.loads(schema).get("type") == "record")


def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


def _differences(old: Any, new: Any, where: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old.get("name") != new.get("name"):
            yield f"{where or 'it'} is {new.get('name')} now, and was {old.get('name')}"
        elif old["type"] == "record":
            yield from _of_fields(old, new, where)
        elif old["type"] == "enum":
            if old["symbols"] != new["symbols"]:
                now, was = ", ".join(new["symbols"]), ", ".join(old["symbols"])
                yield f"{where} is one of {now} now, and was one of {was}"
        elif old["type"] in ("array", "map"):
            inner = "items" if old["type"] == "array" else "values"
            yield from _differences(old[inner], new[inner], f"{where}[]")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for was, now in zip(old, new, strict=True):
            yield from _differences(was, now, where)
    elif old != new:
        yield f"{where or 'it'} is {_shown(new)} now, and was {_shown(old)}"


def _renames(old: Any, new: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    for was in old if isinstance(old, list) else [old]:
        for now in new if isinstance(new, list) else [new]:
            if not isinstance(was, dict) or not isinstance(now, dict) or was["type"] != now["type"]:
                continue
            if was["type"] in ("array", "map"):
                inner = "items" if was["type"] == "array" else "values"
                yield from _renames(was[inner], now[inner], where)
            elif was["type"] == "record" and was["name"] == now["name"]:
                yield from _renamed_fields(was, now, where)


def _renamed_fields(old: Any, new: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    was = {field["name"]: field for field in old["fields"]}
    now = {field["name"]: field for field in new["fields"]}
    dot = f"{where}." if where else ""
    known = {alias for field in now.values() for alias in field.get("aliases", ())}
    came = [f"{dot}{name}" for name, field in now.items() if name not in was and not field.get("aliases")]
    for name in was:
        if name not in now and name not in known and came:
            yield f"{dot}{name}", came
    for name in was.keys() & now.keys():
        yield from _renames(was[name]["type"], now[name]["type"], f"{dot}{name}")


def _of_fields(old: Any, new: Any, where: str) -> Iterator[str]:
    was = {field["name"]: field for field in old["fields"]}
    now = {field["name"]: field for field in new["fields"]}
    dot = f"{where}." if where else ""
    yield from (f"{dot}{name} is new" for name in now if name not in was)
    yield from (f"{dot}{name} is gone" for name in was if name not in now)
    both = [name for name in now if name in was]
    if both != [name for name in was if name in now]:
        yield f"the fields{where and ' of ' + where} have another order"
    for name in both:
        yield from _differences(was[name]["type"], now[name]["type"], f"{dot}{name}")
        if new_names := sorted({*now[name].get("aliases", ())} - {*was[name].get("aliases", ())}):
            yield f"{dot}{name} is also read from {', '.join(new_names)}"
        if "default" in was[name]:
            if "default" not in now[name]:
                yield f"{dot}{name} has no default any more"
            elif was[name]["default"] != now[name]["default"]:
                change = f"{json.dumps(was[name]['default'])} to {json.dumps(now[name]['default'])}"
                yield f"the default of {dot}{name} goes from {change}"


def _shown(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(map(_shown, schema))
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else str(schema)


def _against(reader: str, writer: str) -> list[str]:
    """Why a reader's schema cannot read a writer's data, according to the `avro` package; empty if it can."""
    import avro.schema  # slow to load, and every `steadfaust` command loads this module
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

    checker = ReaderWriterCompatibilityChecker()
    result = checker.get_compatibility(avro.schema.parse(reader), avro.schema.parse(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted(each.value.replace("_", " ") for each in result.incompatibilities))
    texts = ", ".join(sorted(str(each).strip("{}") for each in result.messages))
    return [f"{kinds} ({texts})"]
