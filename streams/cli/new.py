"""`steadfaust new`: create a project that runs.

Exit status: 0 done, 1 the folder is not empty or cannot be written, 2 the name is not a valid package name.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

import typer

from streams.cli.options import say
from streams.errors import SteadfaustError

#: The project that is copied. Its files end in .txt here: they are data, not modules of the library.
TEMPLATE = Path(__file__).with_name("project")
#: The name of the package in it.
TEMPLATE_NAME = "myapp"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
#: Names of other folders in a project, which the package cannot have.
_FOLDERS = ("tests", "var", "build", "dist")


class NoProjectMade(SteadfaustError):
    """The folder of a new project is not empty, or cannot be written."""


def new(
    name: Annotated[str, typer.Argument(help="Name of the package and its folder, such as myapp.")],
) -> None:
    """Create a project in a new folder, with a service, a table, a test, pyproject.toml and a compose file.

    The folder must not exist, or must be empty. Exit status 1 if it is not empty, 2 if the name is not a
    valid package name.
    """
    if problem := why_no_name(name):
        raise typer.BadParameter(problem, param_hint="NAME")
    make(name, Path(name))
    say(f"created {name}/. Next:")
    for line in (f"cd {name}", "pip install -e '.[test]'", "pytest", "cat README.md"):
        say(f"  {line}")


def why_no_name(name: str) -> str:
    """Why a package cannot have this name; empty if it can."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is not a valid package name: use lower-case letters, digits and _, such as my_app"
    if iskeyword(name):
        return f"{name!r} is a Python keyword: try {name}_app"
    if name in _FOLDERS:
        return f"{name!r} is the name of another folder of the project: try {name}_app"
    # A plain folder has no origin, so the project's own empty folder does not count as installed.
    if name in sys.stdlib_module_names or ((found := find_spec(name)) is not None and found.origin):
        return f"an installed package already has the name {name!r}: try {name}_app"
    return ""


def make(name: str, folder: Path) -> None:
    """Write the project. Raises NoProjectMade."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise NoProjectMade(f"{folder} exists and is not empty: choose another name, or empty it")
        for source in sorted(TEMPLATE.rglob("*.txt")):
            path = str(source.relative_to(TEMPLATE)).removesuffix(".txt").replace(TEMPLATE_NAME, name)
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text().replace(TEMPLATE_NAME, name))
    except OSError as error:
        raise NoProjectMade(f"{folder} cannot be written: {error}") from error
