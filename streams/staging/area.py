"""What is decided and not yet committed."""

from __future__ import annotations

from collections.abc import Iterator

from streams.staging.changelog import Staged
from streams.staging.changes import Change


class Overlay:
    """Rows staged but not yet in the store: the newest change of each, by table and local key."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, Change]] = {}

    def get(self, table: str, key: bytes) -> Change | None:
        """The staged change of a local key; one with value None is a deletion."""
        rows = self._tables.get(table)
        return None if rows is None else rows.get(key)

    def put(self, key: bytes, change: Change) -> None:
        """Stage a change under its local key: later reads see it."""
        rows = self._tables.get(change.table)
        if rows is None:
            rows = self._tables[change.table] = {}
        rows[key] = change

    def changes(self, table: str) -> Iterator[tuple[bytes, Change]]:
        """Every staged change of a table, with its local key."""
        return iter(self._tables.get(table, {}).items())

    def restore(self, key: bytes, table: str, change: Change | None) -> None:
        """Take a change back: `change` was the newest one before, if there was any."""
        if change is not None:
            self._tables[table][key] = change
        else:
            del self._tables[table][key]

    def forget(self, staged: Staged) -> None:
        """Drop changes that have reached the store, except where a newer one has come since."""
        for table, changes in staged.changes.items():
            rows = self._tables.get(table, {})  # source positions are staged, but never read back
            for key, change in changes.items():
                if rows.get(key) is change:
                    del rows[key]

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))
