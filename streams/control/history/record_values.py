"""Records of any of the application's topics as they are shown, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from streams.control.base.asked import as_asked
from streams.control.base.table_fields import RAW_SHOWN, plain, shown_table, text_of
from streams.control.history.timeline import topics_of, value_of
from streams.control.history.topic_answers import RecordAnswer
from streams.engine.waiting.dead_letters.row import decode_letter
from streams.errors import SteadfaustError
from streams.model.application import Application
from streams.model.codecs import decode_row
from streams.model.envelope import TYPE, rfc3339
from streams.model.layout import CLAIMS, DEAD_LETTERS
from streams.model.row_keys import split_row_key
from streams.ports import Damaged, Record
from streams.units import KIB

#: Bytes of a value that are decoded, or shown as they are, in full.
MOST_FULL = 1024 * KIB
_KEPT_OUT = "(kept out of this page)"
_decode = msgspec.json.decode


def record_answer(app: Application, record: Record, *, full: bool = False) -> RecordAnswer:
    """A record as it is shown."""
    headers = {name: text_of(value or b"") for name, value in record.headers}
    key, subkey, lookup = _key(app, record)
    kind = app.wiring.messages().get(app.repartitions.get(record.topic, record.topic))
    shown = _value(app, record, MOST_FULL if full else 0)
    if full and record.value:
        shown["hex"] = record.value[:MOST_FULL].hex()
    return RecordAnswer(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        time=rfc3339(record.timestamp / 1000),
        key=key,
        subkey=subkey,
        lookup=lookup,
        type=kind.__name__ if kind is not None else headers.get(TYPE, ""),
        headers=list(headers.items()) if full else [],
        size=len(record.key or b"") + len(record.value or b""),
        **shown,
    )


def _key(app: Application, record: Record) -> tuple[str, str, str]:
    """Key, sub-key, and the key to search for."""
    data = record.key or b""
    table = app.changelogs.get(record.topic)
    if table in app.tables:
        key, subkey = map(text_of, split_row_key(data))
        return key, subkey, as_asked(key)
    key = text_of(data)
    is_message = table is None and record.topic in topics_of(app)
    return key, "", as_asked(key) if is_message and record.key is not None else ""


def _value(app: Application, record: Record, most: int) -> dict[str, Any]:
    source = topics_of(app).get(record.topic)
    if source is not None:
        return value_of(app, record, source.topic, most=most) if most else value_of(app, record, source.topic)
    value = record.value
    if value is None:
        return {"unreadable": "it has no value: its key is removed"}
    if isinstance(record, Damaged):
        return {"unreadable": record.why, "hex": value[:RAW_SHOWN].hex()}
    try:
        return {"value": plain(_reader(app, record.topic)(record.key or b"", value))}
    except (SteadfaustError, msgspec.DecodeError, msgspec.ValidationError, ValueError, IndexError) as error:
        return {"unreadable": f"{error}", "hex": value[:RAW_SHOWN].hex()}


def _reader(app: Application, topic: str) -> Callable[[bytes, bytes], Any]:
    table = app.changelogs.get(topic)
    if table in app.tables:
        codec = app.tables[table].codec
        return lambda _, data: decode_row(codec, data)
    if table == CLAIMS:
        return lambda key, data: shown_table(app, CLAIMS).read(key, data).value
    if table == DEAD_LETTERS:
        return lambda _, data: _letter(data)
    if table is not None:
        return _own
    if topic == app.layout.operations:
        return lambda _, data: _operation(data)
    return lambda _, data: _json_or_text(data)


def _operation(data: bytes) -> Any:
    """The operation, without the bytes of an edited message: these may be seen where letters are."""
    fields = _decode(data, type=dict[str, Any])
    return {name: _KEPT_OUT if name in ("value", "headers") else each for name, each in fields.items()}


def _letter(data: bytes) -> Mapping[str, Any]:
    letter = decode_letter(data)
    return {
        "state": str(letter.state),
        "handler": letter.handler,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "key": text_of(letter.key or b""),
        "error": f"{letter.error_type}: {letter.error_message}",
        "replays": letter.replays,
    }


def _own(_: bytes, data: bytes) -> Any:
    raise ValueError(f"it is a note of a lane for itself, of {len(data)} bytes")


def _json_or_text(data: bytes) -> Any:
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return data.decode()
