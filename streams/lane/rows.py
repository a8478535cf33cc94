"""The rows that a handler asks for: what is staged comes before what is committed."""

from __future__ import annotations

from functools import partial
from typing import Any

from streams.errors import Undecodable, UnknownSchema
from streams.model.application import BoundHandler, BoundTable
from streams.model.codecs import decode_row
from streams.model.row_keys import row_key
from streams.ports import Store
from streams.staging.area import Overlay
from streams.staging.arrival import Arrival
from streams.staging.unreadable import Unreadable


class RowReader:
    """Reads the rows of one lane."""

    def __init__(self, store: Store, overlay: Overlay, unreadable: Unreadable) -> None:
        self._store = store
        self._overlay = overlay
        self._unreadable = unreadable

    def of(self, arrival: Arrival, handler: BoundHandler) -> list[Any]:
        """A handler's rows for a message, in the order of its parameters. Raises RowUnreadable, or
        RowSchemaUnknown.
        """
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
            row = decode_row(table.codec, data)
        except (Undecodable, UnknownSchema) as error:
            raise self._unreadable.row(table.name, local, error) from error
        if self._unreadable.found:
            self._unreadable.forget(table.name, local)
        return row


def call(rows: RowReader, arrival: Arrival, handler: BoundHandler) -> Any:
    """Call a handler with a message and the rows that it asks for: its outcome, or one to be awaited."""
    given = rows.of(arrival, handler)
    if handler.wants_envelope:
        return handler.call(arrival.message, *given, envelope=arrival.envelope)
    return handler.call(arrival.message, *given)
