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
        Path, typer.Option(help="Where the compiled copy goes; what is there is replaced.")
    ] = Path("build/compiled"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the environment as JSON.")] = False,
) -> None:
    """Compile the hot path with mypyc, and say how to start workers that use it. Does nothing when these
    sources are compiled already. Needs a C compiler and mypy.
    """
    environment = compile_into(into.absolute())
    if as_json:
        say(json.dumps(environment))
        return
    say(f"compiled {', '.join(HOT)} into {into}; run workers in this directory with", err=True)
    say(" ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items()))
