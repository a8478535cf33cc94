"""From a record to a message, or why it is none."""

from __future__ import annotations

from typing import Any

from streams.errors import MissingHeader, TooLarge
from streams.model.application import BoundRoute
from streams.model.envelope import Envelope
from streams.model.row_keys import MAX_KEY_BYTES
from streams.ports import Record
from streams.staging.payloads import refers, require_key, require_reference


def checked(record: Record) -> Envelope:
    """The envelope of a record that has an id, a key and a value, none too long. Raises PermanentError."""
    envelope = Envelope(record)
    envelope.require_bounded()
    if record.key is None or record.value is None:
        missing = "key" if record.key is None else "value"
        raise MissingHeader(f"{record.topic} offset {record.offset} has no {missing}")
    if len(record.key) > MAX_KEY_BYTES:
        raise TooLarge(f"its key has {len(record.key)} bytes, the limit is {MAX_KEY_BYTES}")
    return envelope


def decoded(route: BoundRoute, record: Record, envelope: Envelope) -> Any:
    """The message of a record that was checked. Raises PermanentError, or UnknownSchema."""
    message = route.codec.decode(record.value or b"", envelope.fingerprint)
    if route.outside:
        require_key(message, record.key)
    return message


def unpacked(route: BoundRoute, record: Record, envelope: Envelope) -> Any:
    """The same; None when its payload is to be fetched, and all else that can be checked now is right."""
    if refers(record):
        require_reference(route, envelope)
        return None
    return decoded(route, record, envelope)
