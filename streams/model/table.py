"""Tables: rows by (key, subkey), each table with its own compacted changelog topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from streams.model.message import Row

R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """A table: its name, which is part of its changelog topic's name, and the class of its rows. A handler
    reads and writes the row under its message's key.
    """

    name: str
    row: type[R]

    def by(self, subkey: Callable[[Any], str]) -> RowOf[R]:
        """The sub-row that a message names: `RESERVATIONS.by(lambda line: line.order_id)`."""
        return RowOf(self, subkey)

    @property
    def any(self) -> RowOf[R]:
        """Whichever of the key's rows the handler asks for: its parameter is `Rows`, and its outcome names
        the rows it changes by subkey. A row that no handler uses is not read, however large it is.
        """
        return RowOf(self, any=True)


#: Reads one of the key's rows by subkey, "" for the one without; while the handler runs, and no later.
Rows: TypeAlias = Callable[[str], R | None]


@dataclass(frozen=True, slots=True)
class RowOf(Generic[R]):
    """The row of the message's key that a handler reads and writes; without `subkey`, the one row of the key,
    and with `any` those that it asks for.
    """

    table: Table[R]
    subkey: Callable[[Any], str] | None = None
    any: bool = False
