"""Arguments of an inbox's callers: ids, payloads and handlers in the forms that they have."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from streams.errors import DataError, HeaderTooLong, MissingHeader, SettingsError
from streams.model.envelope import MAX_ID_BYTES

#: An id as senders have it: text, a UUID, or the bytes of a header.
EventId: TypeAlias = str | UUID | bytes
_BYTES = (bytes, bytearray, memoryview)
#: Of a handler's first parameter that wants the connection.
_CONNECTION = ("connection", "conn")
#: Of one that wants the payload, though others with a default follow.
_PAYLOAD = ("payload", "event", "events", "message")


def id_of(event_id: EventId) -> str:
    """The id as text: the same for each form. Raises MissingHeader, HeaderTooLong or DataError for one that
    cannot be kept.
    """
    if isinstance(event_id, UUID):
        return str(event_id)
    if isinstance(event_id, bytes | bytearray | memoryview):
        try:
            event_id = bytes(event_id).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"the event id {event_id!r} is not UTF-8: {error}") from error
    elif event_id is not None and not isinstance(event_id, str):
        raise DataError(f"the event id {event_id!r} is a {type(event_id).__name__}: give str, UUID or bytes")
    require_id(event_id)
    return event_id


def require_id(event_id: str) -> None:
    """Raises MissingHeader, HeaderTooLong or DataError for an id that cannot be kept."""
    if not event_id:
        raise MissingHeader("an event without an id cannot be told apart from its duplicates: give one")
    try:
        size = len(event_id.encode())
    except UnicodeEncodeError as error:
        raise DataError(f"the event id {event_id!a} cannot be stored as text: {error}") from error
    if size > MAX_ID_BYTES:
        raise HeaderTooLong(f"an event id has {size} bytes, the limit is {MAX_ID_BYTES}: send a shorter one")
    if "\0" in event_id:
        raise DataError(f"the event id {event_id!a} contains a zero byte, which PostgreSQL does not store")


def payload_bytes(event_id: str, payload: Any) -> bytes | None:
    """A payload as it is stored: bytes as they are, text in UTF-8, all else as JSON; None: there is none.

    Raises DataError for what cannot be JSON.
    """
    if payload is None or isinstance(payload, _BYTES):
        return None if payload is None else bytes(payload)
    try:
        text = (
            payload
            if isinstance(payload, str)
            else json.dumps(
                msgspec.to_builtins(payload), allow_nan=False, ensure_ascii=False, separators=(",", ":")
            )
        )
        return text.encode()
    except Exception as error:  # a value may raise whatever it likes
        raise DataError(
            f"the payload of event {event_id}, a {type(payload).__name__}, cannot be stored as JSON: {error}"
        ) from error


async def call(handler: Callable[..., Any], connection: Any, given: Any) -> Any:
    """Call a handler that is declared as `handler()`, `handler(payload)` or
    `handler(connection, payload)`; it may be a coroutine function or not.

    A single parameter of the name `connection` is given that. A first one of the name `payload` is given that
    alone where those behind it have defaults; of any other name, two get both. Raises SettingsError for
    another declaration.
    """
    positional, named = _arguments(handler, connection, given)
    result = handler(*positional, **named)
    return await result if inspect.isawaitable(result) else result


def _arguments(handler: Callable[..., Any], connection: Any, given: Any) -> tuple[list[Any], dict[str, Any]]:
    try:
        parameters = [*inspect.signature(handler).parameters.values()]
    except (TypeError, ValueError):  # of a function that does not say, such as one in C
        return [connection, given], {}
    positional = [
        each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    required = [each for each in positional if each.default is each.empty]
    keywords = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    named = {each.name: connection for each in keywords if each.name in _CONNECTION}
    others = [each.name for each in keywords if each.default is each.empty and each.name not in named]
    if len(required) > 2 or others:
        raise SettingsError(
            f"the handler {getattr(handler, '__qualname__', handler)} takes {inspect.signature(handler)}:"
            " declare it as handler(), handler(payload) or handler(connection, payload)"
        )
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    wants_connection = bool(positional) and positional[0].name in _CONNECTION
    takes_two = len(positional) > 1 and (len(required) == 2 or positional[0].name not in _PAYLOAD)
    if takes_two or (takes_any and not positional):
        return [connection, given], named
    if wants_connection:
        return [connection], named
    return [given] if positional else [], named
