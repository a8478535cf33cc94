"""What pyproject.toml cannot say: STEADFAUST_COMPILED=1 compiles the hot path into a wheel (docs/adr/0012).

Without it all is as the sources are, in an editable install, too.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

from setuptools import setup


def hot_path() -> list[str]:
    """The files that `streams/runtime/compiling.py` lists. It is read: an import would need all packages."""
    source = Path(__file__).with_name("streams") / "runtime" / "compiling.py"
    for statement in ast.parse(source.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "HOT":
            return [f"streams/{module.replace('.', '/')}.py" for module in ast.literal_eval(statement.value)]
    raise SystemExit(f"{source} has no list HOT of what is to be compiled")


if os.environ.get("STEADFAUST_COMPILED") == "1":
    from mypyc.build import mypycify

    options = ["--ignore-missing-imports", "--follow-imports=silent"]
    setup(ext_modules=mypycify([*options, *hot_path()]))
else:
    setup()
