"""Dead letters that other programs have written: parse their headers, and restore the original headers.

Spring Kafka writes `kafka_dlt-*`, or `kafka_*` after retry topics, with numbers in binary. Kafka Streams
(KIP-1034) and Kafka Connect write text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain
from typing import NamedTuple

from streams.model.envelope import EXPIRY, epoch_seconds
from streams.ports import Headers, Record

#: Prefixes of the headers that Amazon MSK Replicator, MirrorMaker 2, Confluent Replicator and Lenses K2K add.
REPLICATION = ("__amazon_msk_", "mm2.", "mm2-", "__replicator", "k2k_")


class ForeignLetter(NamedTuple):
    """A dead letter in a topic of another program. Fields that its headers lack are empty or -1.

    Attributes:
        form: spring, streams or connect; unknown if it has no headers of these.
        partition, offset, timestamp, key: of the record in the topic of dead letters.
        topic, topic_partition, topic_offset: where it was read when it failed.
        error_type, error_message: of the exception.
        by: the consumer group or the connector that failed.
    """

    form: str
    partition: int
    offset: int
    timestamp: int
    key: str
    topic: str
    topic_partition: int
    topic_offset: int
    error_type: str
    error_message: str
    by: str


class _Form(NamedTuple):
    """The header names of one kind of program. `prefixes` cover all headers that it adds to a record."""

    name: str
    topic: str
    partition: str
    offset: str
    error_type: tuple[str, ...]
    error_message: str
    by: str
    prefixes: tuple[str, ...]
    number: Callable[[bytes], int]


def _binary(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _spring(begin: str) -> _Form:
    return _Form(
        "spring",
        f"{begin}original-topic",
        f"{begin}original-partition",
        f"{begin}original-offset",
        (f"{begin}exception-cause-fqcn", f"{begin}exception-fqcn", f"{begin}key-exception-fqcn"),
        f"{begin}exception-message",
        f"{begin}original-consumer-group",
        ("kafka_dlt-", "kafka_original-", "kafka_exception-", "kafka_key-exception-", "retry_topic-"),
        _binary,
    )


_FORMS = (
    _spring("kafka_dlt-"),
    _Form(
        "streams",
        "__streams.errors.topic",
        "__streams.errors.partition",
        "__streams.errors.offset",
        ("__streams.errors.exception",),
        "__streams.errors.message",
        "",
        ("__streams.errors.",),
        int,
    ),
    _Form(
        "connect",
        "__connect.errors.topic",
        "__connect.errors.partition",
        "__connect.errors.offset",
        ("__connect.errors.exception.class.name",),
        "__connect.errors.exception.message",
        "__connect.errors.connector.name",
        ("__connect.errors.",),
        int,
    ),
    _spring("kafka_"),
)
#: Filters by name: each compares a letter with a value.
FILTERS: Mapping[str, Callable[[ForeignLetter, str], bool]] = {
    "topic": lambda letter, value: letter.topic == value,
    "error": lambda letter, value: f".{letter.error_type}".endswith(f".{value}"),
    "message": lambda letter, value: value in letter.error_message,
    "key": lambda letter, value: letter.key == value,
    "by": lambda letter, value: letter.by == value,
    "form": lambda letter, value: letter.form == value,
}


def read_letter(record: Record) -> ForeignLetter:
    """Parse the headers of a record in a topic of dead letters."""
    headers: dict[str, bytes] = {}
    for name, value in record.headers:
        headers.setdefault(name, value or b"")  # the first of a name is the oldest: where it failed first
    form = next((each for each in _FORMS if each.topic in headers), None)
    key = (record.key or b"").decode("utf-8", "backslashreplace")
    place = record.partition, record.offset, record.timestamp, key
    if form is None:
        return ForeignLetter("unknown", *place, "", -1, -1, "", "", "")
    kinds = (_text(headers.get(name)) for name in form.error_type)
    # Streams writes the exception's `toString()`, which has its message behind the class.
    kind = next(filter(None, kinds), "").partition(":")[0]
    return ForeignLetter(
        form.name,
        *place,
        _text(headers[form.topic]),
        _number(form, headers.get(form.partition)),
        _number(form, headers.get(form.offset)),
        kind,
        _text(headers.get(form.error_message)),
        _text(headers.get(form.by)),
    )


def own_headers(headers: Headers) -> Iterator[tuple[str, bytes]]:
    """The headers that the record had before it became a dead letter."""
    added = tuple(chain.from_iterable(form.prefixes for form in _FORMS))
    return ((name, value) for name, value in headers if not name.startswith(added))


def headers_to_replay(
    headers: Headers, drop: Sequence[str], now: float
) -> tuple[list[tuple[str, bytes]], list[str]]:
    """The headers for a replay, and the names of headers that were dropped besides those of the failure:
    replication headers, which describe the copy of a record; a `ce_expirytime` before `now` (epoch seconds),
    with which the replay would expire at once; and those in `drop`, given by name or as a pattern with `*`.
    """
    kept, dropped = [], []
    for name, value in own_headers(headers):
        is_over = name == EXPIRY and (until := epoch_seconds(_text(value))) is not None and until < now
        is_copied = name.startswith(REPLICATION)
        if is_over or is_copied or any(fnmatchcase(name, each) for each in drop):
            dropped.append(name)
        else:
            kept.append((name, value))
    return kept, dropped


def matches(letter: ForeignLetter, where: Mapping[str, str]) -> bool:
    """Whether a letter matches all filters, given as values by name."""
    return all(FILTERS[name](letter, value) for name, value in where.items())


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(form: _Form, value: bytes | None) -> int:
    with suppress(ValueError):
        return form.number(value) if value else -1
    return -1
