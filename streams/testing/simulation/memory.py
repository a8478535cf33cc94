"""The memory of simulated processes: what modules keep in globals is lost with the process that has it."""

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

#: What a handler can keep something in without assigning to a name. Objects of classes of their own are not
#: copied: they may be what is outside, which all processes share.
_KEPT = (list, dict, set, bytearray, deque, count, Random)


class Memory:
    """Gives each process globals of its own in the modules of some functions, as they are when this is made.

    Only one process has its globals in place at a time. The library's own modules are left alone.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        modules = _modules({each.__module__ for each in functions if hasattr(each, "__module__")})
        self._names = [(vars(module), name) for module in modules for name in _changing(module)]
        self._original = self._values()
        self._pristine = self._copies()
        self._of: dict[Hashable, list[Any]] = {}
        self._current: Hashable = None

    def enter(self, process: Hashable) -> None:
        """From now on a process runs: what it has kept is in place."""
        if process is self._current or not self._names:
            return
        if self._current is not None:
            self._of[self._current] = self._values()
        self._current = process
        self._place(self._of.pop(process) if process in self._of else deepcopy(self._pristine))

    def leave(self) -> None:
        """Put back what there was before, and forget all processes."""
        self._place(self._original)
        self._of, self._current = {}, None

    def _values(self) -> list[Any]:
        return [namespace[name] for namespace, name in self._names]

    def _copies(self) -> list[Any]:
        """One copy of all: what two modules share is still shared. What cannot be copied is left out."""
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
    """The modules of these names, and those beside them in their packages."""
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
    """The globals of a module that its functions can change."""
    functions = [getattr(each, "function", each) for each in vars(module).values()]  # a handler has its own
    own = [f for f in functions if isinstance(f, FunctionType) and f.__module__ == module.__name__]
    assigned = {name for function in own for name in _assigned(function.__code__)}
    for name, value in vars(module).items():
        if not name.startswith("__") and (isinstance(value, _KEPT) or name in assigned):
            yield name


@cache
def _assigned(code: CodeType) -> frozenset[str]:
    """The names that code declares `global` and assigns to."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_GLOBAL"}
    return frozenset(own.union(*(_assigned(each) for each in code.co_consts if isinstance(each, CodeType))))
