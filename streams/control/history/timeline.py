"""A timeline from records: in order of time, each with its cause. Pure; a record that says nothing is shown
as what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streams.control.base.claims import claim_answer
from streams.control.base.table_fields import RAW_SHOWN, plain, text_of
from streams.control.history.timeline_answers import TimelineEntry
from streams.errors import PermanentError, UnknownSchema
from streams.model.application import Application
from streams.model.claim import claim_in
from streams.model.envelope import (
    CAUSATION,
    CORRELATION,
    FINGERPRINT,
    ID,
    SOURCE,
    TRACEPARENT,
    TYPE,
    rfc3339,
)
from streams.model.layout import dead_letter_topic
from streams.model.message import Message
from streams.ports import TP, Damaged, Record
from streams.saga.messages import Command, Repair, Reply, SagaTransition
from streams.tracing.context import trace_at
from streams.units import KIB

#: Bytes of a value that is decoded to be shown; a longer one is shown as bytes.
MOST_SHOWN = 64 * KIB
_RETRY, _LETTER = "retry", "dead letter"
_FAILURE = {
    _RETRY: ("retry-attempt", "retry-error-type", "retry-error-message", "retry-due"),
    _LETTER: ("dlq-retry-count", "dlq-error-type", "dlq-error-message", "dlq-failed-at"),
}
_HANDLER = {_RETRY: "retry-handler", _LETTER: "dlq-handler"}
_KINDS: tuple[tuple[type[Message], str], ...] = (
    (Command, "command"),
    (Reply, "reply"),
    (SagaTransition, "transition"),
    (Repair, "repair"),
)


class TopicSource(NamedTuple):
    """Content of a topic: messages of another topic, where it is one of retries or of dead letters."""

    topic: str
    kind: str


def topics_of(app: Application) -> dict[str, TopicSource]:
    """Every topic that a timeline is made of."""
    found = {topic: TopicSource(topic, _kind(kind)) for topic, kind in app.wiring.messages().items()}
    found |= {sent_on: found[topic] for sent_on, topic in app.repartitions.items()}
    for topic, route in app.routes.items():
        delays = max(len(handler.retry.delays) for handler in route.handlers)
        found |= {retry: TopicSource(topic, _RETRY) for retry in route.retries[:delays]}
        found[route.dead_letters] = TopicSource(topic, _LETTER)
    for beside, topic in app.former.items():
        found[beside] = TopicSource(topic, _LETTER if beside == dead_letter_topic(topic) else _RETRY)
    return found


def partitions_for(app: Application, key: bytes | None) -> tuple[TP, ...]:
    """Where the records of a key are; None: all partitions. Retries and dead letters have one partition."""
    layout = app.layout
    numbers = range(layout.partitions) if key is None else [layout.partition_of(key)]
    return tuple(
        TP(topic, number)
        for topic, source in topics_of(app).items()
        for number in ([0] if source.kind in _FAILURE else numbers)
    )


def timeline(app: Application, records: Sequence[Record], trace_url: str = "") -> list[TimelineEntry]:
    """The records in order of time; of those of one millisecond, the cause first. `trace_url` is where traces
    are looked at, with a place for their id.
    """
    topics = topics_of(app)
    headers = [_headers(record) for record in records]
    depths = _depths(headers)
    order = sorted(range(len(records)), key=lambda n: _place(records[n], depths[n], topics))
    places: dict[str, int] = {}
    for number, n in enumerate(order, start=1):
        places.setdefault(headers[n].get(ID, ""), number)
    first = records[order[0]].timestamp if order else 0
    return [
        _entry(app, records[n], headers[n], number, first, places, topics, trace_url)
        for number, n in enumerate(order, start=1)
    ]


def _entry(
    app: Application,
    record: Record,
    headers: Mapping[str, str],
    number: int,
    first: int,
    places: Mapping[str, int],
    topics: Mapping[str, TopicSource],
    trace_url: str,
) -> TimelineEntry:
    source, kind = topics.get(record.topic, TopicSource(record.topic, "message"))
    message = app.wiring.messages().get(source)
    own = headers.get(ID, "")
    again = kind in _FAILURE and 0 < places.get(own, 0) < number
    shown_value = value_of(app, record, source)
    cause = places.get(headers.get(CAUSATION, ""), 0) if headers.get(CAUSATION) else 0
    return TimelineEntry(
        number=number,
        time=rfc3339(record.timestamp / 1000),
        after_ms=record.timestamp - first,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=text_of(record.key or b""),
        type=message.__name__ if message is not None else headers.get(TYPE, record.topic),
        kind=kind,
        id=own,
        caused_by=own if again else headers.get(CAUSATION, ""),
        cause=places[own] if again else cause,
        correlation=headers.get(CORRELATION, ""),
        source=headers.get(SOURCE, ""),
        handlers=[] if shown_value.get("poison") else _handlers(app, source, kind, headers),
        failure={name.partition("-")[2]: headers[name] for name in _FAILURE.get(kind, ()) if name in headers},
        trace=(trace := _trace(headers.get(TRACEPARENT, ""))),
        trace_at=trace_at(trace_url, trace),
        **shown_value,
    )


def _trace(traceparent: str) -> str:
    """The trace's id, the second part of the header."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 else ""


def _handlers(app: Application, source: str, kind: str, headers: Mapping[str, str]) -> list[str]:
    if kind in _FAILURE:
        return [headers[_HANDLER[kind]]] if headers.get(_HANDLER[kind]) else []
    route = app.routes.get(source)
    return [] if route is None else [handler.name for handler in route.handlers]


def value_of(app: Application, record: Record, source: str, *, most: int = MOST_SHOWN) -> dict[str, Any]:
    """A value as the pages show it, of a message of the topic `source`; decoded if it has no more
    than `most` bytes. `poison` is set where no handler can have seen it.
    """
    value, codec = record.value, app.message_codecs.get(source)
    headers = dict(record.headers)
    if value is None:
        return {"unreadable": "it has no value", "poison": True}
    poison = False
    try:
        if not value and (claim := claim_in(headers)) is not None:
            return {
                "reference": f"{claim.reference} ({claim.size:,} bytes)",
                "claim": claim_answer(claim),
            }
        if isinstance(record, Damaged):
            why, poison = record.why, True
        elif len(value) > most:
            why = f"its {len(value):,} bytes are too many to be shown"
        elif codec is None:
            why = f"no message of {source} is known"
        else:
            return {"value": plain(codec.decode(value, headers.get(FINGERPRINT)))}
    except (PermanentError, UnknownSchema) as error:
        why, poison = str(error), isinstance(error, PermanentError)
    return {"unreadable": why, "hex": value[:RAW_SHOWN].hex(), "poison": poison}


def _kind(message: type[Message]) -> str:
    return next((word for kind, word in _KINDS if issubclass(message, kind)), "event")


def _headers(record: Record) -> dict[str, str]:
    return {name: text_of(value or b"") for name, value in record.headers}


def _depths(headers: Sequence[Mapping[str, str]]) -> list[int]:
    """How many causes each has behind it, of those that are here; anybody can write a circle of them."""
    causes = {each[ID]: each.get(CAUSATION, "") for each in headers if each.get(ID)}
    depths = []
    for each in headers:
        seen: set[str] = set()
        at = each.get(CAUSATION, "")
        while at in causes and at not in seen:
            seen.add(at)
            at = causes[at]
        depths.append(len(seen))
    return depths


def _place(
    record: Record, depth: int, topics: Mapping[str, TopicSource]
) -> tuple[int, int, bool, str, int, int]:
    apart = record.topic in topics and topics[record.topic].kind in _FAILURE
    return record.timestamp, depth, apart, record.topic, record.partition, record.offset
