"""The rows that a handler asks for: what is staged comes before what is committed."""

from __future__ import annotations

from functools import partial
from typing import Any

from streams.errors import Undecodable, UnknownSchema
from streams.model.application import BoundHandler, BoundTable
from streams.model.codecs import decode_row
from streams.model.row_keys import row_key
from streams.staging.area import StagingArea
from streams.staging.arrival import Arrival


def call(staging: StagingArea, arrival: Arrival, handler: BoundHandler) -> Any:
    """Call a handler with a message and the rows that it asks for: its outcome, or one to be awaited. Raises
    RowUnreadable or RowSchemaUnknown, and what the handler raises.
    """
    key, prefix = arrival.record.key or b"", arrival.entry.prefix
    rows = [
        partial(_read_sub, staging, table, prefix + row_key(key))
        if any_row
        else _read(staging, table, prefix + row_key(key, subkey(arrival.message).encode() if subkey else b""))
        for _, table, subkey, any_row in handler.rows
    ]
    if handler.wants_envelope:
        return handler.call(arrival.message, *rows, envelope=arrival.envelope)
    return handler.call(arrival.message, *rows)


def _read_sub(staging: StagingArea, table: BoundTable, base: bytes, subkey: str) -> Any:
    return _read(staging, table, base + subkey.encode())


def _read(staging: StagingArea, table: BoundTable, local: bytes) -> Any:
    staged = staging.get(table.name, local)
    if staged is not None:
        return staged.row
    data = staging.store.get(table.name, local)
    if data is None:
        return None
    try:
        row = decode_row(table.codec, data)
    except (Undecodable, UnknownSchema) as error:
        raise staging.unreadable.row(table.name, local, error) from error
    if staging.unreadable.found:
        staging.unreadable.forget(table.name, local)
    return row
