"""Compares the schemas of an application's classes with the frozen ones, and freezes new versions.

Only commands use this; a worker reads frozen schemas with `streams.model.schema_versions`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from streams.errors import SteadfaustError, Undecodable
from streams.model.avro_types import derived_schema
from streams.model.choreography import Choreography, Route
from streams.model.codecs import Schemas, fingerprint_of
from streams.model.message import Message, Row
from streams.model.schema_changes import (
    differences,
    printed,
    renamed,
    renames,
    unreadable,
    unreadable_versions,
)
from streams.model.schema_versions import REASON, SCHEMA, FrozenSchemas
from streams.saga.messages import Command, Repair, Reply

TABLE = "[tool.steadfaust.schemas]"
_RENAME = (
    "rename it in three deploys (docs/upgrading.md), give the new field the old name as an alias, or name the"
    " old field with --drop if it is gone"
)


class BadSchemas(SteadfaustError):
    """The application's classes were not found, or a schema file cannot be read."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tool.steadfaust.schemas]` of a pyproject.toml.

    Attributes:
        of: modules with choreographies, routes or a Worker, or `module:name` for one of these.
        folder: folder of the frozen schemas.
    """

    of: tuple[str, ...] = ()
    folder: str = "schemas"


@dataclass(frozen=True, slots=True)
class SchemaFinding:
    """A topic or table, and how its class compares to its frozen schemas.

    Attributes:
        subject: the topic or table.
        kind: its folder: events, commands, replies or rows.
        class_name: empty if it only has a frozen schema.
        version: the newest frozen version, 0 if there is none.
        fingerprint: fingerprint of the class's schema, 16 hexadecimal digits; empty without a class.
        differences: differences between the class and the newest version.
        unreadable: by version, why it and the version before cannot read each other.
        reasons: by version, the reason given for freezing it nevertheless.
    """

    subject: str
    kind: str
    class_name: str
    version: int
    fingerprint: str
    differences: tuple[str, ...] = ()
    unreadable: dict[int, list[str]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """frozen, changed, new (not frozen yet) or unused (no class has it)."""
        if not self.class_name:
            return "unused"
        if not self.version:
            return "new"
        return "changed" if self.differences else "frozen"

    @property
    def unexplained(self) -> dict[int, list[str]]:
        """Versions that cannot read a neighbour, and for which no reason was given."""
        return {number: why for number, why in self.unreadable.items() if number not in self.reasons}


@dataclass(frozen=True, slots=True)
class FrozenSchema:
    """The result of freezing one topic or table.

    Attributes:
        done: `frozen`, `unchanged` or `refused`.
        version: the newest version now, 0 if there is none.
        why: what changed, or why it was refused.
        advice: options with which it would not be refused.
    """

    subject: str
    done: str
    version: int
    file: str
    why: tuple[str, ...] = ()
    advice: str = ""


def declared(pyproject: Path) -> Declared:
    """`[tool.steadfaust.schemas]` of a file; the defaults if the file does not exist. Raises BadSchemas."""
    if not pyproject.exists():
        return Declared()
    try:
        tool = tomllib.loads(pyproject.read_text("utf-8")).get("tool", {})
        return msgspec.convert(tool.get("steadfaust", {}).get("schemas", {}), Declared)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSchemas(f"{pyproject}, {TABLE}: {error}") from None


def wired(of: list[str] | None) -> list[Choreography]:
    """The choreographies in `of`, or else those that pyproject.toml names. Raises BadSchemas."""
    found = [wiring for target in of or declared(Path("pyproject.toml")).of for wiring in wirings(target)]
    if not found:
        raise BadSchemas(
            f"name the module with the wiring: --of agents.choreographies, or `of` in {TABLE} of"
            " pyproject.toml"
        )
    return found


def classes_of(targets: Iterable[str]) -> dict[str, type[Any]]:
    """The classes of messages and rows in these wirings, by topic or table. Raises BadSchemas."""
    found: dict[str, type[Any]] = {}
    for target in targets:
        found_here = list(wirings(target))
        if not found_here:
            raise BadSchemas(
                f"{target} has neither a choreography nor routes: name the module that has the wiring"
            )
        for wiring in found_here:
            tables = {name: table.row for name, table in wiring.tables().items()}
            for subject, kind in {**wiring.messages(), **tables}.items():
                if found.setdefault(subject, kind) is not kind:
                    raise BadSchemas(f"{subject} has two classes: {found[subject]!r} and {kind!r}")
    if not found:
        raise BadSchemas(
            f"name the module with the wiring: --of agents.choreographies, or `of` in {TABLE} of"
            " pyproject.toml"
        )
    return found


def review(classes: dict[str, type[Any]], folder: Path) -> list[SchemaFinding]:
    """Compare every topic and table that has a class or a frozen schema. Raises NoAvro and BadSchemas."""
    kinds = {subject: kind for kind, subject in FrozenSchemas(folder).subjects()}
    found = []
    for subject in sorted({*classes, *kinds}):
        cls = classes.get(subject)
        kind = kinds.get(subject) or _kind(subject, cls)
        versions = _versions(folder, kind, subject)
        derived = derived_schema(cls) if cls else ""
        found.append(
            SchemaFinding(
                subject,
                kind,
                cls.__name__ if cls else "",
                len(versions),
                fingerprint_of(derived) if cls else "",
                tuple(differences(versions[-1], derived)) if cls and versions else (),
                unreadable_versions(versions),
                dict(_reasons(folder / kind / subject)),
            )
        )
    return found


def freeze(
    finding: SchemaFinding, cls: type[Any], folder: Path, why: str = "", drop: Collection[str] = ()
) -> FrozenSchema:
    """Freeze the schema of a class as the next version, if it has changed.

    It is refused if it and the newest version cannot read each other and `why` is empty, or if it loses some
    fields and gains others and a lost field is not in `drop`. `why` is stored beside the schema.
    """
    place = folder / finding.kind / finding.subject
    newest = str(place / f"{finding.version}{SCHEMA}") if finding.version else ""
    if finding.state == "frozen":
        return FrozenSchema(finding.subject, "unchanged", finding.version, newest)
    derived = derived_schema(cls)
    versions = _versions(folder, finding.kind, finding.subject)
    against = unreadable(versions[-1], derived) if versions else []
    gone = renames(versions[-1], derived) if versions else {}
    lost = {field: came for field, came in gone.items() if field not in drop}
    if lost or (against and not why):
        return FrozenSchema(
            finding.subject,
            "refused",
            finding.version,
            newest,
            (*against, *(f"{renamed(field, came)}: {_RENAME}" for field, came in lost.items())),
            " ".join([*['--why "..."'] * bool(against and not why), *(f"--drop {field}" for field in gone)]),
        )
    version = finding.version + 1
    place.mkdir(parents=True, exist_ok=True)
    if against:
        (place / f"{version}{REASON}").write_text(f"{why}\n", "utf-8")
    file = place / f"{version}{SCHEMA}"
    with file.open("x", encoding="utf-8") as new:  # never overwrite a frozen schema
        new.write(printed(msgspec.json.decode(derived)) + "\n")
    return FrozenSchema(finding.subject, "frozen", version, str(file), finding.differences)


def _versions(folder: Path, kind: str, subject: str) -> list[str]:
    """The frozen schemas of a topic or table, oldest first. Raises BadSchemas."""
    place = folder / kind / subject
    numbers = FrozenSchemas(folder).numbers(kind, subject)
    if numbers != list(range(1, len(numbers) + 1)):
        raise BadSchemas(f"{place} has versions {numbers}: they must count from 1 without a gap")
    texts = [(place / f"{number}{SCHEMA}").read_text("utf-8") for number in numbers]
    for number, text in zip(numbers, texts, strict=True):
        try:
            Schemas().add(text)
        except Undecodable as error:
            raise BadSchemas(f"{place / f'{number}{SCHEMA}'}: {error}") from None
    return texts


def _reasons(place: Path) -> Iterator[tuple[int, str]]:
    for file in place.glob(f"*{REASON}"):
        if text := file.read_text("utf-8").strip():
            yield int(file.name.removesuffix(REASON)), text


def wirings(target: str) -> Iterator[Choreography]:
    """The choreographies of `module[:name]`, including those of Workers and of routes. Raises BadSchemas."""
    module, _, name = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(
            0, str(Path.cwd())
        )  # as with `python -m`, so that an application need not be installed
    try:
        found = import_module(module)
    except ImportError as error:
        raise BadSchemas(f"{target} cannot be imported: {error}") from None
    if name and not hasattr(found, name):
        raise BadSchemas(f"{module} has no {name}")
    for each in [getattr(found, name)] if name else vars(found).values():
        wiring = getattr(each, "wiring", each)  # a Worker's, or its own
        if isinstance(wiring, Choreography):
            yield wiring
        elif isinstance(each, tuple | list) and each and all(isinstance(part, Route) for part in each):
            yield Choreography(*each)


def _kind(subject: str, cls: type[Any] | None) -> str:
    """The folder of a topic or table that is frozen for the first time."""
    if cls is None or issubclass(cls, Row):
        return "rows"
    if issubclass(cls, Reply):
        return "replies"
    imperative = issubclass(cls, Command | Repair) or ".commands." in subject
    return "commands" if imperative and issubclass(cls, Message) else "events"
