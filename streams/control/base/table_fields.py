"""Tables as they are shown: the application's by their codecs, the lane's own by what they are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from streams.control.base.view import Problem
from streams.engine.staging.changes import POSITIONS, TIMERS
from streams.engine.staging.inbox import bucket_length
from streams.engine.staging.keys import after_time, time_in
from streams.engine.staging.position import decode_position
from streams.engine.staging.timers import Stored
from streams.errors import Undecodable, UnknownSchema
from streams.model.application import Application
from streams.model.bound import BoundTable
from streams.model.codecs import FINGERPRINT_SIZE, decode_row
from streams.model.envelope import rfc3339
from streams.model.layout import CLAIMS, INBOX, LANE
from streams.model.row_keys import split_row_key
from streams.units import DAY

_INBOX_BUCKET = re.compile(r"_inbox-(\d{8,12})\Z", re.ASCII)
#: Of bytes that cannot be decoded, so many are shown.
RAW_SHOWN = 200

_decode_timer = msgspec.msgpack.Decoder(Stored).decode


class Fields(NamedTuple):
    """A row in plain data; `error` says why there is no value, `hex` has the beginning of its bytes then."""

    key: str
    subkey: str
    value: Any
    schema: str = ""
    error: str = ""
    hex: str = ""


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table that can be browsed.

    Attributes:
        name: of the local table.
        about: what its rows are, for people.
        changelog: the topic it is rebuilt from.
        builtin: whether it is the lane's own; its rows are not found by a message's key.
        read: (changelog key, value) -> what is shown.
    """

    name: str
    about: str
    changelog: str
    builtin: bool
    read: Callable[[bytes, bytes], Fields]


def shown_tables(app: Application, local: Iterable[str]) -> list[ShownTable]:
    """The application's tables, then the lane's own; `local` names what the stores have."""
    claims = [] if app.claims is None else [CLAIMS]
    buckets = sorted(name for name in local if _INBOX_BUCKET.match(name))
    names = [*app.tables, POSITIONS, TIMERS, *claims, *buckets]
    return [shown_table(app, name) for name in names]


def shown_table(app: Application, name: str) -> ShownTable:
    """One table. Raises Problem 404."""
    layout = app.layout
    if (bound := app.tables.get(name)) is not None:
        kind = app.wiring.tables()[name].row
        first, _, _ = inspect.cleandoc(kind.__doc__ or "").partition(".")
        about = f"{kind.__name__}: {first}" if first else kind.__name__
        return ShownTable(name, about, bound.changelog, False, _rows_of(bound))
    if name == POSITIONS:
        about = "by source topic, the offset that each partition goes on from"
        return ShownTable(name, about, layout.changelog(LANE), True, _position)
    if name == TIMERS:
        about = "messages that are sent when they are due"
        return ShownTable(name, about, layout.changelog(LANE), True, _timer)
    if name == CLAIMS and app.claims is not None:
        about = "objects that messages refer to, each with the last time that it was needed"
        return ShownTable(name, about, layout.changelog(CLAIMS), True, _claim)
    if (match := _INBOX_BUCKET.match(name)) is not None:
        length = bucket_length(app.lane_options.inbox_retention)
        about = f"ids of messages handled in the {length / DAY:g} days since {_day(int(match[1]) * length)}"
        return ShownTable(name, about, layout.changelog(INBOX), True, _inbox_entry)
    raise Problem(404, "unknown_table", f"there is no table {name!r}: there are {', '.join(app.tables)}")


def text_of(data: bytes) -> str:
    """Bytes that should be UTF-8, whatever they are."""
    return data.decode("utf-8", "backslashreplace")


def plain(value: Any) -> Any:
    """A decoded value as plain data. Bytes, which are JSON of sagas and replies mostly, are shown as what
    they say, so that the names of what is personal are known in them, too; others as text.
    """
    return _legible(msgspec.to_builtins(value, builtin_types=(bytes,)))


def _legible(value: Any) -> Any:
    if isinstance(value, bytes):
        return _said(value)
    if isinstance(value, dict):
        return {name: _legible(each) for name, each in value.items()}
    return [_legible(each) for each in value] if isinstance(value, list | tuple) else value


def _said(data: bytes) -> Any:
    if data[:1] in (b"{", b"["):
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            return text_of(data)
    return text_of(data)


def _rows_of(table: BoundTable) -> Callable[[bytes, bytes], Fields]:
    def read(changelog_key: bytes, data: bytes) -> Fields:
        key, subkey = map(text_of, split_row_key(changelog_key))
        schema = data[:FINGERPRINT_SIZE].hex()
        try:
            return Fields(key, subkey, plain(decode_row(table.codec, data)), schema)
        except (Undecodable, UnknownSchema) as error:
            return Fields(key, subkey, None, schema, str(error), data[:RAW_SHOWN].hex())

    return read


def _position(changelog_key: bytes, data: bytes) -> Fields:
    found = decode_position(data)
    position: dict[str, Any] = {"offset": found.offset}
    if found.ahead:
        position["handled_ahead"] = [f"{begin}-{end}" for begin, end in found.ahead]
    return Fields(text_of(changelog_key), "", position)


def _timer(changelog_key: bytes, data: bytes) -> Fields:
    handler, _, rest = changelog_key.partition(b"\0")
    key, name = split_row_key(rest)
    due = rfc3339(time_in(data) / 1000)
    try:
        topic = _decode_timer(after_time(data)).topic
    except ValueError as error:
        return Fields(text_of(key), text_of(name), None, error=str(error), hex=data[:RAW_SHOWN].hex())
    return Fields(text_of(key), text_of(name), {"due": due, "topic": topic, "handler": text_of(handler)})


def _claim(changelog_key: bytes, data: bytes) -> Fields:
    return Fields(text_of(changelog_key), "", {"needed": rfc3339(int.from_bytes(data, "big") / 1000)})


def _inbox_entry(changelog_key: bytes, note: bytes) -> Fields:
    value = {"note": text_of(note), "handler_and_source": changelog_key[:8].hex()}
    return Fields(text_of(changelog_key[8:]), "", value)


def _day(seconds: float) -> str:
    try:
        return rfc3339(seconds)[:16]
    except (OverflowError, ValueError, OSError):  # a name made up by hand
        return "a time out of range"
