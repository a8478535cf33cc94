"""`steadfaust saga check`: compare saga definitions with the frozen ones, and predict what sagas in flight
do.

It needs no worker and no broker. Exit status: 0 no problem, 1 sagas in flight would wait, or a definition is
not frozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from streams.cli.options import Json, echo, say
from streams.cli.schema_files import BadSchemas, declared, wirings
from streams.cli.schemas import Folder, Of
from streams.model.schema_changes import printed
from streams.saga.engine import SagaHandler
from streams.saga.outline import Outline, changes, harmless_changes

FAILED = 1
#: Folder of frozen definitions, beside the schemas: `sagas/<saga>/<version>.json`.
SAGAS = "sagas"

Write = Annotated[bool, typer.Option("--write", help="Freeze definitions that are not frozen yet.")]


class Frozen(NamedTuple):
    """A frozen definition, and the file that has it."""

    outline: Outline
    file: Path


class VersionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a saga, and what its sagas in flight would do.

    Attributes:
        state: `same`; `harmless`; `waits`: sagas in flight wait until the definition has its old steps again;
            `gone`: the same, because the application lacks the version; `new`: not frozen; `frozen`: just
                now.
        changes: differences from the frozen definition.
    """

    saga: str
    version: int
    state: str
    changes: list[str]
    file: str


def check(of: Of = None, folder: Folder = None, *, write: Write = False, as_json: Json = False) -> None:
    """Compare saga definitions with the frozen ones, and show what a change does to running sagas."""
    project = declared(Path("pyproject.toml"))
    place = (folder or Path(project.folder)) / SAGAS
    verdicts = list(judge(outlines(of or list(project.of)), dict(frozen(place)), place, write=write))
    for each in verdicts:
        echo(each, _verdict_line, as_json=as_json)
    unfrozen = all(each.state == "new" for each in verdicts)
    if unfrozen and not as_json:
        say("nothing is frozen yet: `steadfaust saga check --write` freezes what is deployed")
    wrong = [
        each for each in verdicts if each.state in ("waits", "gone") or (each.state == "new" and not unfrozen)
    ]
    raise typer.Exit(FAILED if wrong else 0)


def outlines(of: list[str]) -> dict[tuple[str, int], list[Outline]]:
    """The definitions of an application by name and version. Raises BadSchemas."""
    found: dict[tuple[str, int], list[Outline]] = {}
    for target in of:
        for wiring in wirings(target):
            for handler in wiring.handlers():
                for each in handler.versions if isinstance(handler, SagaHandler) else ():
                    alike = found.setdefault((each.name, each.version), [])
                    if each.outline not in alike:  # several wirings may have it
                        alike.append(each.outline)
    if not found:
        raise BadSchemas(
            "no saga was found: name the module that wires `orchestrate(...)` with --of, or as `of` in"
            " [tool.steadfaust.schemas] of pyproject.toml"
        )
    return found


def frozen(place: Path) -> Iterator[tuple[tuple[str, int], Frozen]]:
    """The frozen definitions under a folder. Raises BadSchemas."""
    for file in sorted(place.glob("*/*.json")):
        try:
            made = msgspec.json.decode(file.read_bytes(), type=Outline)
        except msgspec.DecodeError as error:
            raise BadSchemas(f"{file} is not a frozen saga definition: {error}") from None
        yield (made.saga, made.version), Frozen(made, file)


def judge(
    now: dict[tuple[str, int], list[Outline]],
    before: dict[tuple[str, int], Frozen],
    place: Path,
    *,
    write: bool = False,
) -> Iterator[VersionVerdict]:
    """A verdict for each version that is wired or frozen. `write` freezes those that are new or harmless."""
    for name, version in sorted({*now, *before}):
        alike, kept = now.get((name, version), []), before.get((name, version))
        file = kept.file if kept else place / name / f"{version}.json"
        state, found = _judged(alike, kept)
        if write and state in ("new", "harmless"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(printed(msgspec.to_builtins(alike[0])) + "\n", "utf-8")
            state = "frozen"
        yield VersionVerdict(saga=name, version=version, state=state, changes=found, file=str(file))


def _judged(alike: list[Outline], kept: Frozen | None) -> tuple[str, list[str]]:
    if kept is None:
        return "new", []
    if not alike:
        return "gone", []
    for each in alike:
        if not changes(kept.outline, each):
            harmless = harmless_changes(kept.outline, each)
            return ("harmless" if harmless else "same"), harmless
    return "waits", changes(kept.outline, alike[0])


def _verdict_line(of: VersionVerdict) -> str:
    name, what = f"{of.saga}, version {of.version}", "; ".join(of.changes)
    match of.state:
        case "same":
            return f"{name}: same as frozen; sagas in flight continue"
        case "frozen":
            return f"{name}: frozen in {of.file}"
        case "harmless":
            return f"{name}: {what}. Sagas in flight adopt this with their next command (--write freezes it)"
        case "new":
            return f"{name}: not frozen; freeze it with --write once it is deployed"
        case "gone":
            return (
                f"{name}: the application no longer has it. Sagas in flight wait: pass the definition to"
                f" orchestrate(...) again until all of them have ended, then delete {of.file}"
            )
    return (
        f"{name}: {what}. Sagas in flight wait until they have their steps again: give the new steps version"
        f" {of.version + 1} or higher, and keep the steps in {of.file} as version {of.version}"
    )
