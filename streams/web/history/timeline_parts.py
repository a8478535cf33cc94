"""Details of a timeline beside its messages: changes of rows, rows of the outbox, objects of payloads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from streams.claims.claim import Claim
from streams.errors import BlobsUnavailable, ClusterUnavailable, DataError
from streams.model.application import Application
from streams.model.envelope import epoch_seconds, rfc3339
from streams.ports import Record
from streams.web.base.asking import READ
from streams.web.base.database_answers import OutboxRows
from streams.web.base.scans import Question
from streams.web.base.view import WorkerView
from streams.web.history.row_changes import MOST_KEYS, row_changes, row_partitions
from streams.web.history.timeline_answers import ClaimAnswer, RowChange, TimelineEntry
from streams.web.history.topic_answers import RecordAnswer

E = TypeVar("E", TimelineEntry, RecordAnswer)

#: Messages of one timeline that are looked up in the outbox, and objects in the object store.
MOST_ASKED = 20
#: Seconds that the object store may take to say whether an object is there.
PATIENCE = READ
_APART = ("retry", "dead letter")


class Changes(NamedTuple):
    """Changes of rows, and why not all of them are there."""

    changes: list[RowChange]
    stopped: str


async def changes_of(
    view: WorkerView, key: bytes, since_ms: int, messages: Sequence[Record], entries: Sequence[TimelineEntry]
) -> Changes:
    """Versions of the rows of a key, and of keys that its messages went to, since a time; why they are not
    known, where Kafka does not answer. Raises TopicMismatch or PositionLost.
    """
    app = view.application
    others = Counter(record.key for record in messages if record.key and record.key != key)
    keys = (key, *(each for each, _ in others.most_common(MOST_KEYS - 1) if each))
    if not (partitions := row_partitions(app, keys)):
        return Changes([], "")
    try:
        found = await view.scan(Question(partitions, since_ms, keys, rows=True))
    except ClusterUnavailable as error:
        return Changes([], f"Kafka does not answer: {error}")
    stopped = found.stopped
    if stopped and found.until_ms is not None:
        stopped = f"only until {rfc3339(found.until_ms / 1000)}: {stopped}"
    return Changes(row_changes(app, key, messages, entries, found.records), stopped)


async def outbox_of(view: WorkerView, request: str, entries: Sequence[TimelineEntry]) -> OutboxRows:
    """The rows of the messages that nothing here has caused, and of the message that was searched: it may
    wait.
    """
    wanted: dict[str, float] = {request: view.now()}
    for entry in entries:
        if entry.id and not entry.cause and entry.kind not in _APART and len(wanted) < MOST_ASKED:
            wanted[entry.id] = epoch_seconds(entry.time) or 0.0
    return await view.outbox_rows(wanted)


def with_outbox(entries: Sequence[TimelineEntry], rows: OutboxRows) -> list[TimelineEntry]:
    """The entries, each with its row."""
    by_id = {row.id: row for row in rows.rows}
    return [
        msgspec.structs.replace(each, outbox=by_id[each.id])
        if each.id in by_id and each.kind not in _APART
        else each
        for each in entries
    ]


async def with_claims(app: Application, entries: Sequence[E]) -> list[E]:
    """The entries, with what the object store knows of the first objects that are payloads of theirs."""
    claims = {_place(each.claim): each.claim for each in entries if each.claim is not None}
    request = list(claims.items())[:MOST_ASKED]
    answers = dict(
        zip(
            (place for place, _ in request),
            await asyncio.gather(*(_standing(app, claim) for _, claim in request)),
            strict=True,
        )
    )
    return [_told(each, answers) for each in entries]


def _told(entry: E, answers: Mapping[tuple[str, str], ClaimAnswer]) -> E:
    if entry.claim is None:
        return entry
    answer = answers.get(_place(entry.claim), entry.claim)
    return msgspec.structs.replace(entry, claim=answer)


def _place(claim: ClaimAnswer) -> tuple[str, str]:
    return claim.bucket, claim.name


async def _standing(app: Application, claim: ClaimAnswer) -> ClaimAnswer:
    """A claim with what has become of its object."""
    there, words = None, ""
    if app.claims is None:
        words = "this worker has no object store, so that it does not know whether it is there"
    else:
        request = Claim(claim.bucket, claim.name, claim.content_type, "", claim.size)
        try:
            async with asyncio.timeout(PATIENCE):
                blob = await app.claims.look(request)
        except TimeoutError:
            words = f"the object store did not say in {PATIENCE:g} s whether it is there"
        except BlobsUnavailable as error:
            words = f"whether it is there is not known: {error}"
        except DataError as error:  # a reference to another store, which is not looked up
            words = str(error)
        else:
            there = blob is not None
            words = "it is no longer there"
            if blob is not None:
                words = f"it is there since {rfc3339(blob.modified)}"
                if blob.size != claim.size:
                    words += f", with {blob.size:,} bytes instead"
    return msgspec.structs.replace(claim, there=there, standing=words)
