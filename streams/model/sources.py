"""Topics that others write in their own form, and how their records become messages of the application."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol, cast, get_args, get_origin, get_type_hints

import msgspec

from streams.errors import (
    PermanentError,
    TransientError,
    Undecodable,
    Unencodable,
    WiringError,
    ends_process,
    shown,
)
from streams.model.byte_kinds import look_of
from streams.model.envelope import ID, SOURCE, TRACEPARENT, TRACESTATE
from streams.model.handlers import Handler
from streams.model.message import Message
from streams.model.outcome import Outcome, outcome
from streams.ports import Headers, OwnRecord, Record

#: The last of the headers that a lane adds to a source's record. The id and the source of its message stand
#: before it.
_TAKEN = "steadfaust-source"
_ADDED = 3
#: Headers of others that mean something here.
_TRACE = (TRACEPARENT, TRACESTATE)
#: The topic names that Kafka accepts.
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: Service of the handlers that are made for sources.
SERVICE = "source"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """A record of a topic that others write. A test of `into` gives what matters: `SourceRecord(value=...)`.

    Attributes:
        timestamp: in epoch seconds, as the topic has it.
        key: the bytes of its key; None when it has none.
        value: the decoded value; None for a tombstone.
        headers: in their order; a name may be repeated. A null value is empty.
    """

    topic: str = ""
    partition: int = 0
    offset: int = 0
    timestamp: float = 0.0
    key: bytes | None = None
    value: Any = None
    headers: tuple[tuple[str, bytes], ...] = ()

    def header(self, name: str) -> bytes | None:
        """The value of a header; the last one if the name is repeated, None if there is none."""
        return dict(self.headers).get(name)


class Format(Protocol):
    """Decodes the values of a source.

    Attributes:
        kind: the type of the values; of fields that are marked Personal in it, pages mask the values.
    """

    kind: Any

    def decode(self, record: Record) -> Any:
        """The value of a record whose value is not None. Any error makes the record a dead letter."""


class _Json:
    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, record: Record) -> Any:
        try:
            return self._decoder.decode(record.value or b"")
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Undecodable(f"it {look_of(record.value or b'')}; it is not JSON ({error})") from error


class _Raw:
    kind = bytes

    def decode(self, record: Record) -> Any:
        return record.value


def json(kind: Any = Any) -> Format:
    """Values that are JSON. With a `kind`, such as a msgspec Struct, they are checked and converted to it."""
    return _Json(kind)


def raw() -> Format:
    """Values as their bytes."""
    return _Raw()


def field(path: str) -> Callable[[SourceRecord], str]:
    """An id from the value: the name of a field, or a path such as `order.id`. It has to be a text or a whole
    number.
    """

    def find(record: SourceRecord) -> str:
        value = record.value
        for name in path.split("."):
            if isinstance(value, Mapping):
                value = value.get(name)
            elif isinstance(value, msgspec.Struct) and name in value.__struct_fields__:
                value = getattr(value, name)
            else:
                value = None
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise TypeError(f"{path} is {value!r}, which is no id")
        return str(value)

    return find


def header(name: str) -> Callable[[SourceRecord], str]:
    """An id from a header."""

    def find(record: SourceRecord) -> str:
        value = record.header(name)
        if not value:
            raise LookupError(f"there is no header {name}")
        return value.decode()

    return find


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin with a source that was never read: at a group's offsets, at a time, or at the end.

    Attributes:
        since_ms: in epoch milliseconds; None: the end.
        group: partitions without an offset of the group are read from their beginning.
    """

    since_ms: int | None = None
    group: str = ""


#: The beginning of the log.
EARLIEST = Start(since_ms=0)


def earliest() -> Start:
    """Begin with the oldest record that the topic has."""
    return EARLIEST


def latest() -> Start:
    """Begin with the records that are written after a lane has committed its first transaction."""
    return Start()


def at(time: datetime) -> Start:
    """Begin with the first record whose timestamp is not before a time, and at the end of partitions without
    one. Raises WiringError for what is no datetime with a time zone.
    """
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise WiringError(f"at({time!r}): give a datetime with a time zone, such as tzinfo=UTC")
    return Start(since_ms=int(time.timestamp() * 1000))


def group(name: str) -> Start:
    """Begin where a consumer group stands, such as that of the program that this one replaces."""
    if not name:
        raise WiringError("group(''): name the consumer group")
    return Start(group=name)


class FromSource(Message, frozen=True, kw_only=True):
    """Base class of messages that carry the record of a source to its handler."""

    record: SourceRecord

    @property
    def key(self) -> str:
        """The key of the record, as text."""
        return (self.record.key or b"").decode("utf-8", "replace")


class Source:
    """One topic of others: its format, the ids of its records, and the handler that maps them. It is also the
    codec of its topic.
    """

    content_type = "application/octet-stream"
    fingerprint = b""
    schema = ""

    def __init__(
        self,
        topic: str,
        value: Format,
        into: Callable[[SourceRecord], Any],
        id: Callable[[SourceRecord], str] | None,  # noqa: A002 - named as in `source(...)`
        sends: Sequence[type[Message]],
        start: Start,
    ) -> None:
        """Raises WiringError for wrong arguments, and where it is not known what `into` makes."""
        _check(topic, value, into, id, sends, start)
        self.start = start
        self.topic = topic
        self._format = value
        self._into = into
        self._id = id
        self.kind = value.kind
        made_class: Any = msgspec.defstruct(
            f"Record of {topic}",
            [],
            bases=(FromSource,),
            namespace={"TOPIC": topic, "__doc__": f"A record of {topic}."},
            frozen=True,
            kw_only=True,
        )
        #: The class of its messages.
        self.message: type[FromSource] = made_class
        made = tuple(sends) or _made_by(topic, into)
        if not made:
            raise WiringError(
                f"source({topic!r}): it is not known which messages `into` makes: annotate what it returns,"
                " or give sends=[...]"
            )
        self.handler: Handler[Any, Any] = Handler(SERVICE, self._mapping(), made, {})
        self.handler.name = f"{SERVICE}.{topic}"  # a topic may have names that no handler could be given

    def _mapping(self) -> Callable[..., Outcome]:
        into = self._into

        def take(message: FromSource) -> Outcome:
            try:
                return outcome(send=_messages(into(message.record)))
            except (PermanentError, TransientError, OSError):
                raise
            except Exception as error:  # a pure function fails again
                raise PermanentError(f"`into` raised {shown(error)}") from error

        take.__annotations__ = {"message": self.message, "return": Outcome}
        take.__doc__ = f"Make messages of the records of {self.topic}."
        return take

    def identified(self, record: Record) -> Record:
        """A record as it came, with the id and the source of its message in headers after its own. Raises
        PermanentError if it has no id.
        """
        place = _place(record)
        try:
            id_bytes = self._id_of(record, place)
        except PermanentError:
            raise
        except BaseException as error:  # a function of the application may raise anything
            if ends_process(error):
                raise
            raise PermanentError(f"its id cannot be read: {shown(error)}") from error
        more = ((ID, id_bytes), (SOURCE, self.topic.encode()), (_TAKEN, place.encode()))
        return _with_headers(record, [*record.headers, *more])

    def _id_of(self, record: Record, place: str) -> bytes:
        own: Any = place if self._id is None else self._id(self._seen(record, record.headers))
        if not isinstance(own, str) or not own:
            raise TypeError(f"it is {own!r}: give a text")
        return own.encode()

    def as_it_came(self, record: Record) -> Record:
        """A record that may have been identified, without those headers."""
        headers = record.headers
        is_ours = len(headers) >= _ADDED and headers[-1] == (_TAKEN, _place(record).encode())
        return _with_headers(record, headers[:-_ADDED]) if is_ours else record

    def bare(self, record: Record) -> Record:
        """An identified record without the headers of others, but for those of its trace."""
        known = [each for each in record.headers[:-_ADDED] if each[0] in _TRACE]
        return _with_headers(record, [*known, *record.headers[-_ADDED:]])

    def seen(self, record: Record) -> SourceRecord:
        """An identified record as `into` gets it. Raises Undecodable."""
        return self._seen(record, record.headers[:-_ADDED])

    def _seen(self, record: Record, headers: Headers) -> SourceRecord:
        return SourceRecord(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp=record.timestamp / 1000,
            key=record.key,
            value=None if record.value is None else self._decoded(record),
            headers=tuple((name, value or b"") for name, value in headers),
        )

    def _decoded(self, record: Record) -> Any:
        try:
            return self._format.decode(record)
        except PermanentError:
            raise
        except BaseException as error:  # a format may raise anything that bytes lead it into
            if ends_process(error):
                raise
            raise Undecodable(shown(error)) from error

    def encode(self, value: Any) -> bytes:  # noqa: ARG002 - as codecs have it
        """Raises Unencodable: nothing is written to a source."""
        raise Unencodable(f"{self.topic} is a source: only others write it")

    def decode(self, data: bytes, fingerprint: bytes | None) -> Any:  # noqa: ARG002 - a source has none
        """A value alone, for pages. Raises Undecodable."""
        return self._decoded(OwnRecord(self.topic, 0, 0, 0, None, data, ()))

    def require(self, fingerprint: bytes | None) -> None:
        """Its records name no schema of the application."""


def _place(record: Record) -> str:
    """Where a record is. The timestamp tells it from one of a former topic with the same name."""
    return f"{record.partition}-{record.offset}-{record.timestamp}"


def _with_headers(record: Record, headers: Headers) -> Record:
    return OwnRecord(
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value, headers
    )


def _check(topic: str, value: Any, into: Any, id: Any, sends: Any, start: Any) -> None:  # noqa: A002 - as above
    """Raises WiringError for wrong arguments of a source."""
    if not isinstance(topic, str) or not TOPIC.fullmatch(topic):
        raise WiringError(f"source({topic!r}): give a topic of 1 to 249 letters, digits, '.', '_' and '-'")
    for name, given in {"into": into, **({} if id is None else {"id": id})}.items():
        if not callable(given) or any(map(_is_async, (given, type(given).__call__))):
            raise WiringError(f"source({topic!r}): {name} is {given!r}: give a function that is not async")
    if not callable(getattr(value, "decode", None)) or not hasattr(value, "kind"):
        raise WiringError(f"source({topic!r}): value is {value!r}: give a format, such as json()")
    if not isinstance(start, Start):
        raise WiringError(
            f"source({topic!r}): start is {start!r}: give earliest(), latest(), at() or group()"
        )
    for each in sends if isinstance(sends, list | tuple) else [sends]:
        if not _is_message(each):
            raise WiringError(
                f"source({topic!r}): sends has {each!r}, which is no message class with a TOPIC"
            )


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message) and hasattr(kind, "TOPIC")


def _messages(made: Any) -> Sequence[Message]:
    """What `into` returned. Raises PermanentError for what is no message."""
    if made is None:
        return ()
    if isinstance(made, Message):
        return (made,)
    if isinstance(made, Iterable) and not isinstance(made, str | bytes | Mapping):
        found = tuple(made)
        if all(isinstance(each, Message) for each in found):
            return found
    raise PermanentError(f"`into` returned {made!r:.100}: return a message, messages, or None")


def _made_by(topic: str, into: Callable[..., Any]) -> tuple[type[Message], ...]:
    """The message classes in the annotation of what a function returns; none where it has no annotation."""
    function: Any = into.func if isinstance(into, partial) else into
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        hints = [get_type_hints(function).get("return")]
    except (NameError, TypeError) as error:
        raise WiringError(
            f"source({topic!r}): the annotations of `into` cannot be read ({error}): give sends=[...]"
        ) from error
    found: dict[type[Message], None] = {}
    while hints:
        hint = hints.pop(0)
        if _is_message(hint):
            found[cast(type[Message], hint)] = None
        elif get_origin(hint) is not type:
            hints += get_args(hint)
    return tuple(found)
