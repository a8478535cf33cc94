"""The rows that a handler asks for: what is staged comes before what is committed."""

from __future__ import annotations

from functools import partial
from typing import Any

from streams.errors import HandlerFailed, Undecodable
from streams.model.application import BoundHandler, BoundTable
from streams.model.codecs import decode_row
from streams.model.row_keys import row_key, split_row_key
from streams.ports import Store
from streams.staging.arrival import Arrival
from streams.staging.keys import name_in
from streams.staging.sequences import Overlay


class RowReader:
    """Reads the rows of one lane."""

    def __init__(self, store: Store, overlay: Overlay) -> None:
        self._store = store
        self._overlay = overlay

    def of(self, arrival: Arrival, handler: BoundHandler) -> list[Any]:
        """A handler's rows for a message, in the order of its parameters. Raises HandlerFailed."""
        key, prefix = arrival.record.key or b"", arrival.entry.prefix
        return [
            partial(self._read_sub, table, prefix + row_key(key))
            if any_row
            else self._read(table, prefix + row_key(key, subkey(arrival.message).encode() if subkey else b""))
            for _, table, subkey, any_row in handler.rows
        ]

    def _read_sub(self, table: BoundTable, base: bytes, subkey: str) -> Any:
        return self._read(table, base + subkey.encode())

    def _read(self, table: BoundTable, local: bytes) -> Any:
        staged = self._overlay.get(table.name, local)
        if staged is not None:
            return staged.row
        data = self._store.get(table.name, local)
        if data is None:
            return None
        try:
            return decode_row(table.codec, data)
        except Undecodable as error:  # our own state: no message is to blame for it
            key, _ = split_row_key(name_in(local))
            raise HandlerFailed(
                f"a row of table {table.name}, key {key!r}, cannot be read: {error}"
            ) from error


def call(rows: RowReader, arrival: Arrival, handler: BoundHandler) -> Any:
    """Call a handler with a message and the rows that it asks for: its outcome, or one to be awaited."""
    given = rows.of(arrival, handler)
    if handler.wants_envelope:
        return handler.call(arrival.message, *given, envelope=arrival.envelope)
    return handler.call(arrival.message, *given)
