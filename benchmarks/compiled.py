"""Workers run as they are deployed for speed: the hot path compiled, where this machine has a compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from streams.runtime.compiling import CannotCompile, compile_into

#: In the environment of programs that this process starts.
_MARK = "BENCH_COMPILED"
#: What has a program run from the sources all the same.
FROM_SOURCES: Mapping[str, str] = {"PYTHONPATH": "", "PYTHONSAFEPATH": ""}


def use_compiled(var: Path, say: Callable[[str], None]) -> None:
    """Have every program that is started from here on run the compiled library, if it can be compiled."""
    say("compiling the hot path")
    try:
        os.environ.update(compile_into(var / "compiled"))
    except CannotCompile as error:
        say(f"not compiled, so all is measured from the sources: {error}")
    else:
        os.environ[_MARK] = "1"


def is_compiled() -> bool:
    """Whether it could be."""
    return _MARK in os.environ
