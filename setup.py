"""What pyproject.toml cannot say: STEADFAUST_COMPILED=1 compiles the hot path into a wheel (docs/adr/0012).

Without it all is as the sources are, in an editable install, too.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

from setuptools import setup

COMPILING = Path(__file__).with_name("streams") / "host" / "compiling.py"


def said(name: str) -> tuple[str, ...]:
    """What the module that compiles says under a name. It is read: an import would need all packages."""
    for statement in ast.parse(COMPILING.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return tuple(ast.literal_eval(statement.value))
    raise SystemExit(f"{COMPILING} does not say {name}, which is how the hot path is compiled")


if os.environ.get("STEADFAUST_COMPILED") == "1":
    from mypyc.build import mypycify

    sources = [f"streams/{module.replace('.', '/')}.py" for module in said("HOT")]
    setup(ext_modules=mypycify([*said("OPTIONS"), *sources]))
else:
    setup()
