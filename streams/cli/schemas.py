"""`steadfaust schemas`: freeze what classes say as the next version, and check that they say what is frozen.

Exit status: 0 all is well, 1 something differs, cannot be read or was refused, 2 a wrong call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from streams.cli.options import Json, json_line, say
from streams.cli.schema_files import (
    BadSchemas,
    FrozenSchema,
    SchemaFinding,
    classes_of,
    declared,
    freeze,
    review,
)

app = typer.Typer(help="Avro schemas: write (freeze the next version), check.", no_args_is_help=True)

FAILED = 1
Of = Annotated[
    list[str] | None,
    typer.Option(
        "--of",
        metavar="MODULE[:NAME]",
        help="Where choreographies, routes or a Worker are; may be repeated."
        " Else `of` in [tool.steadfaust.schemas].",
    ),
]
Folder = Annotated[
    Path | None, typer.Option(help="Where frozen schemas are. Else `folder` in the same table, or schemas.")
]
Subjects = Annotated[list[str] | None, typer.Argument(help="Topics or tables; all of them unless given.")]
Why = Annotated[
    str,
    typer.Option("--why", help="The reason to freeze versions that others cannot read; name their subjects."),
]

Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="FIELD",
        help="This field is gone, and no new one has its values; may be repeated. Without it a version in"
        " which some fields are gone and others are new is refused: it may be a rename.",
    ),
]


@app.command()
def write(
    subjects: Subjects = None,
    of: Of = None,
    folder: Folder = None,
    why: Why = "",
    drop: Drop = None,
    *,
    as_json: Json = False,
) -> None:
    """Freeze what the classes say, each that has changed as the next version of its topic or table.

    A version that cannot read the one before, or cannot be read by it, is refused, unless --why gives the
    reason, which is kept beside it. So is one that may rename a field, unless the new field has the old name
    as an alias, or --drop says that the old one is dropped. Nothing that is frozen is ever changed.
    """
    classes, place = _found(of, folder)
    if unknown := [each for each in subjects or () if each not in classes]:
        raise typer.BadParameter(f"no message or table is named {', '.join(unknown)}")
    if why and not subjects:
        raise typer.BadParameter("--why is about certain topics or tables: name them")
    chosen = [each for each in review(classes, place) if each.class_name]
    done = [
        freeze(each, classes[each.subject], place, why, drop or ())
        for each in chosen
        if not subjects or each.subject in subjects
    ]
    for each in done:
        if as_json:
            say(json_line(each))
        elif each.done != "unchanged":
            _tell_written(each)
    unchanged = sum(each.done == "unchanged" for each in done)
    if unchanged and not as_json:
        say(f"unchanged: {unchanged} of {len(done)}")
    raise typer.Exit(FAILED if any(each.done == "refused" for each in done) else 0)


@app.command()
def check(of: Of = None, folder: Folder = None, *, as_json: Json = False) -> None:
    """Tell which classes say something else than their newest frozen version, and which versions cannot read
    what the one before or after has written.
    """
    classes, place = _found(of, folder)
    found = review(classes, place)
    nothing = not any(each.version for each in found)
    wrong = [each for each in found if _problems(each, nothing=nothing)]
    for each in found if as_json else wrong:
        if as_json:
            problems = _problems(each, nothing=nothing)
            say(json_line({**msgspec.to_builtins(each), "state": each.state, "problems": problems}))
        else:
            for problem in _problems(each, nothing=nothing):
                say(f"{each.subject}: {problem}")
    if not as_json:
        _tell_rest(found, wrong, nothing=nothing)
    raise typer.Exit(FAILED if wrong else 0)


def _found(of: list[str] | None, folder: Path | None) -> tuple[dict[str, type[Any]], Path]:
    """The classes, and the folder of what is frozen."""
    project = declared(Path("pyproject.toml"))
    place = folder or Path(project.folder)
    if place.exists() and not place.is_dir():
        raise BadSchemas(f"{place} is no folder")
    return classes_of(of or project.of), place


def _problems(found: SchemaFinding, *, nothing: bool) -> list[str]:
    """Problems of a topic's or table's schemas. `nothing`: nothing at all is frozen."""
    problems = []
    if found.state == "changed":
        what = "; ".join(found.differences)
        problems.append(f"{found.class_name} is not as in version {found.version}: {what}. {_freeze(found)}")
    if found.state == "new" and not nothing:
        problems.append(f"{found.class_name} is not frozen. {_freeze(found)}")
    for number, why in found.unexplained.items():
        problems.append(f"version {number}: {'; '.join(why)}. Say why in {found.subject}/{number}.reason.txt")
    return problems


def _freeze(found: SchemaFinding) -> str:
    return f"Freeze it: steadfaust schemas write {found.subject}"


def _tell_written(done: FrozenSchema) -> None:
    what = f": {'; '.join(done.why)}" if done.why else ""
    if done.done == "refused":
        say(f"refused    {done.subject}{what}", err=True)
        say(f"           if it must be: steadfaust schemas write {done.subject} {done.advice}", err=True)
    else:
        say(f"frozen     {done.subject} as version {done.version}{what}")
        say(f"           {done.file}")


def _tell_rest(found: list[SchemaFinding], wrong: list[SchemaFinding], *, nothing: bool) -> None:
    if unused := [each.subject for each in found if each.state == "unused"]:
        say(f"frozen, but no message or table of the wiring: {', '.join(unused)}")
    if nothing:
        say("nothing is frozen: workers run from the schemas that the classes say")
    else:
        good = sum(each.state == "frozen" for each in found if each not in wrong)
        say(f"{good} of {sum(bool(each.class_name) for each in found)} are as they are frozen")
