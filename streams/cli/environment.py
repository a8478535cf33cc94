"""Whether all names of this process's environment that begin with STEADFAUST_ are settings."""

from __future__ import annotations

import os
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from streams.environment import check_names
from streams.errors import SettingsError
from streams.settings import Settings


def check_environment(project: Path = Path("pyproject.toml")) -> None:
    """Raise SettingsError for names in this process's environment that are no settings, for commands. An
    application's own are in the class that `settings` names in [tool.steadfaust] of the project; a command
    that runs where there is none lets names pass that are not like any it knows.
    """
    kind, declared = Settings, False
    if project.exists():
        tool = tomllib.loads(project.read_text()).get("tool", {})
        if named := tool.get("steadfaust", {}).get("settings"):
            kind, declared = _named(str(named), project), True
    check_names(os.environ, kind.model_fields, complete=declared)


def _named(text: str, project: Path) -> type[Settings]:
    module, _, name = text.partition(":")
    sys.path.insert(0, str(project.parent.absolute()))
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        said = f"{project}, `settings` in [tool.steadfaust] is {text!r}"
        raise SettingsError(f"{said}, which cannot be had ({error}): name it module:Class") from error
    finally:
        sys.path.pop(0)
    if not (isinstance(found, type) and issubclass(found, Settings)):
        raise SettingsError(
            f"{project}, `settings` in [tool.steadfaust] is {text!r}: that is no class of Settings"
        )
    return found
