"""The memory of simulated processes: each process has its own copy of the modules' global variables."""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import deepcopy
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: Types that a handler can modify without assigning to a global name. Objects of other classes are not
#: copied, because they may stand for external services, which all processes share.
_KEPT = (list, dict, set, bytearray, deque, count, Random)


class Memory:
    """Gives each process its own globals in the modules of the given functions. Each process starts with the
    values from the creation of this object.

    Only one process has its globals in place at a time. The library's own modules are not changed.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        modules = _modules({each.__module__ for each in functions if hasattr(each, "__module__")})
        self._names = [(vars(module), name) for module in modules for name in _changing(module)]
        self._original = self._values()
        self._pristine = self._copies()
        self._of: dict[Hashable, list[Any]] = {}
        self._current: Hashable = None

    def enter(self, process: Hashable) -> None:
        """Put this process's globals in place, and save those of the previous process."""
        if process is self._current or not self._names:
            return
        if self._current is not None:
            self._of[self._current] = self._values()
        self._current = process
        self._place(self._of.pop(process) if process in self._of else deepcopy(self._pristine))

    def leave(self) -> None:
        """Restore the original globals, and forget all processes."""
        self._place(self._original)
        self._of, self._current = {}, None

    def _values(self) -> list[Any]:
        return [namespace[name] for namespace, name in self._names]

    def _copies(self) -> list[Any]:
        """Copy all values together, so that two modules still share an object. Skips uncopyable values."""
        self._names = [at for at, value in zip(self._names, self._original, strict=True) if _can_copy(value)]
        self._original = self._values()
        return deepcopy(self._original)

    def _place(self, values: list[Any]) -> None:
        for (namespace, name), value in zip(self._names, values, strict=True):
            namespace[name] = value


def _can_copy(value: Any) -> bool:
    try:
        deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever it says, it cannot be copied
        return False
    return True


def _modules(names: set[str]) -> list[ModuleType]:
    """These modules, and the other modules of their packages or folders."""
    packages = {name.partition(".")[0] for name in names} - {"streams"}
    folders = {
        Path(file).parent
        for name in names
        if "." not in name and name in packages and (file := getattr(sys.modules.get(name), "__file__", None))
    }
    found = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        beside = file is not None and "." not in name and Path(file).parent in folders
        if isinstance(module, ModuleType) and (name.partition(".")[0] in packages or beside):
            found.append(module)
    return found


def _changing(module: ModuleType) -> Iterator[str]:
    """Names of the module's globals that its functions can change."""
    functions = [getattr(each, "function", each) for each in vars(module).values()]  # handlers wrap functions
    own = [f for f in functions if isinstance(f, FunctionType) and f.__module__ == module.__name__]
    assigned = {name for function in own for name in _assigned(function.__code__)}
    for name, value in vars(module).items():
        if not name.startswith("__") and (isinstance(value, _KEPT) or name in assigned):
            yield name


@cache
def _assigned(code: CodeType) -> frozenset[str]:
    """Names that the code declares `global` and assigns to, including nested functions."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_GLOBAL"}
    return frozenset(own.union(*(_assigned(each) for each in code.co_consts if isinstance(each, CodeType))))
