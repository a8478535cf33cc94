"""`steadfaust compile`: compile the hot path."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from streams.cli.options import say
from streams.host.compiling import HOT, compile_into


def compile_hot_path(
    *,
    into: Annotated[
        Path, typer.Option(help="Folder for the compiled copy. Its contents are replaced.")
    ] = Path("build/compiled"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the environment as JSON.")] = False,
) -> None:
    """Compile the hot path with mypyc, and print the environment variables that make workers use it.

    Does nothing if the same sources are already compiled. Needs a C compiler and mypy.
    """
    environment = compile_into(into.absolute())
    if as_json:
        say(json.dumps(environment))
        return
    say(f"compiled {', '.join(HOT)} into {into}; run workers in this directory with", err=True)
    say(" ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items()))
