"""History of a key: the rows that its owner has, and its records in all topics, in order of time.

The topics' own time index says where to begin to read, and the key says in which partition, so nothing is
written for this on the way of a message (docs/adr/0032-timeline.md).
"""

from __future__ import annotations

import re
from asyncio import gather
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode

from streams.control.base.asked import address_of, asked_text
from streams.control.base.claims import with_claims
from streams.control.base.lane_rows import Query
from streams.control.base.others import Others
from streams.control.base.scans import MOST_RECORDS, Question, Scan, joined
from streams.control.base.view import Problem, WorkerView
from streams.control.history.holdings import held, key_bytes
from streams.control.history.timeline import partitions_for, timeline, topics_of
from streams.control.history.timeline_answers import KeyAnswer, NamedThing, TimelineAnswer
from streams.control.history.timeline_parts import changes_of, outbox_of, with_outbox
from streams.control.sagas.saga_rows import kinds
from streams.errors import ClusterUnavailable
from streams.model.application import Application
from streams.model.envelope import CORRELATION, epoch_seconds, rfc3339
from streams.ports import Record
from streams.units import DAY

#: Seconds that a timeline goes back by default, unless its saga began earlier.
WINDOW = 3600.0
#: Seconds before the beginning of a saga: the message that starts it was written before that.
_BEFORE_SAGA = 60.0
#: Characters of a text by which handlers, topics and tables are found, at least; and so many of them at most.
LEAST_NAMED, MOST_NAMED = 3, 20
#: Correlation ids that are followed into other partitions.
_MOST_FOLLOWED = 16
#: Ages that a longer look back is offered for.
_AGES = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": DAY, "7d": 7 * DAY, "30d": 30 * DAY, "365d": 365 * DAY}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}


class Meant(NamedTuple):
    """A search: the key that the text is or names, and the ids that its records may have."""

    key: str
    wanted: tuple[bytes, ...]


async def look_into(view: WorkerView, query: Query, others: Others[KeyAnswer]) -> TimelineAnswer:
    """Everything known of `q`: a key, a saga's id, a message id or a correlation id. Raises Problem 400.

    The query may have `since` (an age such as 2h, or a time), `everywhere` (all partitions, not the key's
    alone) and `most` (records to look at). The answer names owners that did not answer.
    """
    request = query.get("q", "").strip()
    if (text := asked_text(query.get("q", ""))) is None:
        raise Problem(400, "no_key", "which key? give a key, a saga's id, a message id or a correlation id")
    meant = meant_by(view, text)
    since = since_of(query.get("since", ""), view.now())
    most = _most(query.get("most", ""))
    there, missing = await _held(view, meant.key, others)
    since = since if since is not None else _begin(there, view.now())
    everywhere = query.get("everywhere", "") not in ("", "0", "false")
    try:
        found = await _scan(view, meant, since, most, there, everywhere=everywhere)
    except ClusterUnavailable as error:  # what the lanes and the outbox have is known all the same
        found = _Hit(Scan([], 0, 0, int(since * 1000), f"Kafka does not answer: {error}"), everywhere)
    records = found.scan.records
    entries = timeline(view.application, records, view.trace_url)
    changes, outbox, entries = await gather(
        changes_of(view, key_bytes(meant.key), int(since * 1000), records, entries),
        outbox_of(view, request, entries),
        with_claims(view.application, entries),
    )
    waits = {each.id: each for each in outbox.rows if not any(each.id == entry.id for entry in entries)}
    return TimelineAnswer(
        named=named_by(view.application, request) if len(request) >= LEAST_NAMED else [],
        asked=request,
        key=meant.key,
        held=there,
        missing=missing,
        since=rfc3339(since),
        until="" if found.scan.until_ms is None else rfc3339(found.scan.until_ms / 1000),
        stopped=found.scan.stopped,
        looked=found.scan.looked,
        partitions=found.scan.partitions,
        topics=len(topics_of(view.application)),
        everywhere=found.everywhere,
        entries=with_outbox(entries, outbox),
        changes=changes.changes,
        changes_stopped=changes.stopped,
        outbox=waits.get(request),
        outbox_missing=outbox.missing,
        longer=next((age for age, seconds in _AGES.items() if seconds > 1.01 * (view.now() - since)), ""),
    )


def meant_by(view: WorkerView, request: str) -> Meant:
    """Read the text of a search: a saga's id means its key. Raises Problem 400 for none."""
    name, colon, rest = request.partition(":")
    names = {kind.name for kind in kinds(view)}
    key = rest if colon and rest and name in names else request
    return Meant(key, tuple({key_bytes(key), key_bytes(request)}))


def named_by(app: Application, text: str) -> list[NamedThing]:
    """Handlers, topics and tables whose name is the text, begins with it or has it, in this order."""
    known: dict[str, Iterable[str]] = {
        "handler": app.handlers,
        "topic": topics_of(app),
        "table": app.tables,
    }
    part = text.lower()
    names = [(kind, name) for kind, all_ in known.items() for name in all_ if part in name.lower()]
    names.sort(key=lambda each: (each[1] != text, not each[1].lower().startswith(part), each[1]))
    return [
        NamedThing(kind=kind, name=name, link=f"/{kind}s/{quote(name, safe='')}")
        for kind, name in names[:MOST_NAMED]
    ]


def only_thing(answer: TimelineAnswer) -> str:
    """The address of the one thing that was found; empty when there are more, or none."""
    there = answer.held
    if answer.named and answer.named[0].name == answer.key:
        return answer.named[0].link
    things = there.things if there is not None else 0
    if there is None or things + bool(answer.entries) != 1:
        return ""
    if there.sagas:
        return address_of("/sagas", "saga", there.sagas[0].id)
    if there.tables:
        query = urlencode({"key": there.key}, errors="surrogateescape")
        return f"/tables/{quote(there.tables[0].table, safe='')}/rows?{query}"
    return f"/timeline?{urlencode({'q': answer.asked})}" if answer.entries else ""


def since_of(text: str, now: float) -> float | None:
    """An age, or a time as RFC 3339, in epoch seconds; None when none is given. Raises Problem 400."""
    if not text:
        return None
    if found := _AGE.fullmatch(text):
        return max(0.0, now - float(found[1]) * _UNITS[found[2]])
    time = epoch_seconds(text)
    if time is None or time < 0:
        raise Problem(400, "bad_since", f"since is {text!r}: give an age (90s, 10m, 2h, 1d) or a time")
    return time


# -- how --------------------------------------------------------------------------------------------------


class _Hit(NamedTuple):
    scan: Scan
    everywhere: bool


async def _scan(
    view: WorkerView, meant: Meant, since: float, most: int, there: KeyAnswer | None, *, everywhere: bool
) -> _Hit:
    """In the key's partitions; in all, with what correlates, when the query says so, or when it is no key."""
    app, since_ms = view.application, int(since * 1000)
    key = key_bytes(meant.key)
    first = await view.scan(Question(partitions_for(app, key), since_ms, meant.wanted, most))
    is_key = any(record.key == key for record in first.records) or (there is not None and there.things > 0)
    if is_key and not everywhere:
        return _Hit(first, everywhere=False)
    wanted = (*meant.wanted, *_correlations(first.records))
    second = await view.scan(Question(partitions_for(app, None), since_ms, wanted, most))
    return _Hit(joined(first, second)._replace(looked=second.looked), everywhere=True)


def _correlations(records: Sequence[Record]) -> list[bytes]:
    found = (value for record in records for name, value in record.headers if name == CORRELATION and value)
    return list(dict.fromkeys(found))[:_MOST_FOLLOWED]


async def _held(view: WorkerView, key: str, others: Others[KeyAnswer]) -> tuple[KeyAnswer | None, str]:
    try:
        return await held(view, key, others), ""
    except Problem as problem:
        return None, problem.detail


def _begin(there: KeyAnswer | None, now: float) -> float:
    """Where a timeline begins by itself: its oldest saga's start, or the window before now."""
    began = [epoch_seconds(saga.created_at) for saga in (there.sagas if there else []) if saga.created_at]
    starts = [time - _BEFORE_SAGA for time in began if time is not None]
    return max(0.0, min([now - WINDOW, *starts]))


def _most(text: str) -> int:
    if not text:
        return MOST_RECORDS
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= MOST_RECORDS):
        raise Problem(400, "bad_most", f"most is {text!r}: it must be a number from 1 to {MOST_RECORDS}")
    return int(text)
