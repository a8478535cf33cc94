"""Answers about topics and their records, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.control.base.claims import ClaimAnswer


class TopicAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in the list.

    Attributes:
        kind: messages, retries, dead letters, changelog, operations, or announcements.
        about: what its records are, for people.
        exists: whether the cluster has it.
        kept: how long, or by what, records are kept; in words.
        offsets: from the beginning of its logs to their ends: at most so many records are there. Markers of
            transactions, and what compaction has removed, count.
        recent: offsets written in the last minute.
        open: offsets behind the first open transaction, not to be seen yet.
    """

    name: str
    kind: str
    about: str
    exists: bool = True
    partitions: int = 0
    replication: int = 0
    kept: str = ""
    offsets: int = 0
    recent: int = 0
    open: int = 0


class TopicsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All topics of the application. `note` says why they are not as they stand now, and from when they are;
    empty: they stand so now.
    """

    topics: list[TopicAnswer]
    note: str = ""


class LogAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The log of a partition: its offsets. What lies between `stable` and `end` is not decided."""

    partition: int
    begin: int
    stable: int
    end: int
    recent: int


class RecordAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A record.

    Attributes:
        time: RFC 3339, as its writer or the broker gave it.
        subkey: of a row in a changelog.
        lookup: what to search for, to find its key; empty where it is none of a message or a row.
        value: decoded. Where it is not, `hex` has its bytes or their beginning, and `unreadable` says why.
        poison: it cannot be decoded, so that no handler has seen it.
        reference: of a payload in the object store; `claim` says more of it.
        size: bytes of key and value.
    """

    topic: str
    partition: int
    offset: int
    time: str
    key: str
    subkey: str
    lookup: str
    type: str
    headers: list[tuple[str, str]]
    size: int
    value: Any = None
    hex: str = ""
    unreadable: str = ""
    poison: bool = False
    reference: str = ""
    claim: ClaimAnswer | None = None


class PageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a topic's records.

    Attributes:
        way: newest, or oldest, whichever comes first.
        older, newer: cursors for `before` and `after`; empty where the page ends with the log.
        notes: what is to be known of the page, in sentences.
        stopped: why the page ends before it is full; empty: it does not.
        tail: whether it shows the newest records, and follows them.
    """

    topic: TopicAnswer
    logs: list[LogAnswer]
    records: list[RecordAnswer]
    way: str
    older: str
    newer: str
    looked: int
    notes: list[str]
    stopped: str
    tail: bool


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """A record in full. `before` and `behind` are the offsets that its neighbours are looked for from."""

    topic: TopicAnswer
    record: RecordAnswer
    begin: int
    stable: int
