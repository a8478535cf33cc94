"""Tables: rows by (key, subkey), each table with its own compacted changelog topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from streams.model.message import Row

R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """A table of rows of one class. Its name is part of its changelog topic's name. A handler reads and
    writes the row under the key of its message.
    """

    name: str
    row: type[R]

    def by(self, subkey: Callable[[Any], str]) -> RowOf[R]:
        """One of several rows of a key, by a subkey of the message: `LINES.by(lambda line: line.order)`."""
        return RowOf(self, subkey)

    @property
    def any(self) -> RowOf[R]:
        """Any of the key's rows. The handler's parameter is a `Rows`, with which it reads rows by subkey, and
        its outcome has a mapping from subkeys to changed rows. Rows that it does not ask for are not read.
        """
        return RowOf(self, any=True)


#: Reads one of the key's rows by subkey ("" for the row without one). Valid only while the handler runs.
Rows: TypeAlias = Callable[[str], R | None]


@dataclass(frozen=True, slots=True)
class RowOf(Generic[R]):
    """Declares which row of the message's key a handler reads and writes: the row without a subkey, the row
    that `subkey` selects, or with `any` those that it asks for.
    """

    table: Table[R]
    subkey: Callable[[Any], str] | None = None
    any: bool = False
