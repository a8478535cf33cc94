"""Report stored bytes of a lane that cannot be read: once in the log, and in health as long as they stay.

They stop the key that needs them, a queue or a timer, but never the lane.
"""

from __future__ import annotations

import shlex

import structlog

from streams.engine.staging.keys import name_in
from streams.errors import NewerSchema, RowSchemaUnknown, RowUnreadable, Undecodable, UnknownSchema
from streams.model.row_keys import split_row_key

log = structlog.get_logger(__name__)

#: Maximum rows that are remembered and logged; further ones are not.
MOST_NAMED = 100


class UnreadableRows:
    """Unreadable rows that one lane has found since it opened.

    Attributes:
        found: a text for people, by table and local key.
    """

    def __init__(self) -> None:
        self.found: dict[tuple[str, bytes], str] = {}

    def row(
        self, table: str, local: bytes, error: Undecodable | UnknownSchema
    ) -> RowUnreadable | RowSchemaUnknown:
        """Report an unreadable row of the application, by its local key. Returns the error to raise."""
        key, subkey = (part.decode("utf-8", "backslashreplace") for part in split_row_key(name_in(local)))
        what = f"the row of table {table} with key {key!r}" + (f" and subkey {subkey!r}" if subkey else "")
        which = ["--subkey", subkey] if subkey else []
        see = shlex.join(["steadfaust", "rows", "show", table, key, *which])
        if isinstance(error, NewerSchema):
            follows = "messages that need it wait until a worker of a newer version has the lane"
            made: RowUnreadable | RowSchemaUnknown = RowSchemaUnknown(
                f"{what} cannot be read yet: {error}. Messages that need it wait for a worker of that version"
            )
        elif isinstance(error, UnknownSchema):
            follows = "messages that need it wait until a worker announces the schema"
            made = RowSchemaUnknown(
                f"{what} cannot be read yet: {error}. If nobody has that schema, the row is damaged:"
                f" see `{see}`"
            )
        else:
            follows = "messages that need it become dead letters"
            made = RowUnreadable(
                f"{what} cannot be read: {error}. See it with `{see}`, replace or delete it, then replay the"
                " dead letters of its key"
            )
        self.note(table, local, f"{what} cannot be read, and {follows}: {see}", str(error), key=key)
        return made

    def own(self, table: str, local: bytes, what: str, error: Exception, follows: str) -> None:
        """Report something that the lane itself stores, with the consequence in `follows`."""
        self.note(table, local, f"{what} cannot be read: {follows}", repr(error), key=what)

    def note(self, table: str, local: bytes, text: str, error: str, *, key: str) -> None:
        """Report what cannot be read and what follows: the first time in the log, from then on in health."""
        if (table, local) in self.found or len(self.found) >= MOST_NAMED:
            return
        self.found[table, local] = text
        log.error("row_unreadable", table=table, row_key=key, error=error, action=text)

    def forget(self, table: str, local: bytes) -> None:
        """Forget a row that can be read again, or is gone."""
        self.found.pop((table, local), None)

    def texts(self) -> list[str]:
        """The texts about all unreadable rows, for people."""
        return list(self.found.values())
