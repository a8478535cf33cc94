"""`steadfaust schemas`: freeze the schemas of classes, and check the classes against the frozen schemas.

Exit status: 0 no problem, 1 something differs, cannot be read or was refused, 2 wrong arguments.
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

app = typer.Typer(help="Freeze Avro schemas, and check classes against them.", no_args_is_help=True)

FAILED = 1
Of = Annotated[
    list[str] | None,
    typer.Option(
        "--of",
        metavar="MODULE[:NAME]",
        help="Module with a wiring or a Worker; may be repeated."
        r" Default: `of` in \[tool.steadfaust.schemas].",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        help=r"Folder of frozen schemas. Default: `folder` in \[tool.steadfaust.schemas], or else"
        " the folder `schemas`."
    ),
]
Subjects = Annotated[list[str] | None, typer.Argument(help="Topics or tables. Default: all.")]
Why = Annotated[
    str,
    typer.Option(
        "--why",
        help="Reason to freeze an incompatible version. If you give one, name the topics or tables, too.",
    ),
]

Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="FIELD",
        help="Field that is dropped, not renamed; may be repeated. If a version loses some fields and"
        " gains others, it possibly renames one, and is refused without this option or an alias.",
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
    """Freeze the schemas of classes. A changed schema becomes the next version of its topic or table.

    A version is refused if it cannot read records of the previous version, or if the previous version cannot
    read its records. To freeze it anyway, give a reason with --why, which is stored with the version. A
    version that possibly renames a field is refused, too. To freeze it, give the new field the old name as an
    alias, or name the old field with --drop. Frozen versions never change.
    """
    classes, place = _found(of, folder)
    if unknown := [each for each in subjects or () if each not in classes]:
        raise typer.BadParameter(f"there is no topic or table {', '.join(unknown)}")
    if why and not subjects:
        raise typer.BadParameter("--why needs the topics or tables that it is about")
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
    """Report classes that differ from their frozen schema, and versions that are not compatible."""
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
    """The classes by topic or table, and the folder of frozen schemas."""
    project = declared(Path("pyproject.toml"))
    place = folder or Path(project.folder)
    if place.exists() and not place.is_dir():
        raise BadSchemas(f"{place} is not a folder")
    return classes_of(of or project.of), place


def _problems(found: SchemaFinding, *, nothing: bool) -> list[str]:
    """Problems of one topic or table. `nothing` means that no schema at all is frozen."""
    problems = []
    if found.state == "changed":
        what = "; ".join(found.differences)
        problems.append(f"{found.class_name} differs from version {found.version}: {what}. {_freeze(found)}")
    if found.state == "new" and not nothing:
        problems.append(f"{found.class_name} is not frozen. {_freeze(found)}")
    for number, why in found.unexplained.items():
        problems.append(
            f"version {number}: {'; '.join(why)}. Give the reason in {found.subject}/{number}.reason.txt"
        )
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
        say(f"frozen, but not in the wiring: {', '.join(unused)}")
    if nothing:
        say("nothing is frozen yet: workers use the schemas of the classes")
    else:
        good = sum(each.state == "frozen" for each in found if each not in wrong)
        say(f"{good} of {sum(bool(each.class_name) for each in found)} are the same as frozen")
