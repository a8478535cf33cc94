"""Dead letters of all lanes, a bounded part at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from msgspec.structs import replace

from streams.control.base.claims import claim_answer, with_claims
from streams.control.base.lane_rows import (
    AT_ONCE,
    Query,
    age_of,
    check_still_here,
    cursor_of,
    let_others,
    place_of,
    rows_of,
)
from streams.control.base.others import Others
from streams.control.base.paging import decode_limit
from streams.control.base.table_fields import text_of
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.control.letters.letter_answers import (
    GroupAnswer,
    GroupsAnswer,
    LetterAnswer,
    LettersAnswer,
    LetterShown,
    event_answer,
    letter_answer,
)
from streams.control.sagas.indexes import LETTERS, is_indexed
from streams.control.sagas.row_index import entries, place_of_row
from streams.control.waiting.queue_answers import rows_of_key
from streams.control.waiting.waiting_answers import WaitingAnswer
from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import (
    Letter,
    LetterState,
    Summary,
    decode_letter,
    decode_summary,
    letter_id,
    parse_id,
)
from streams.errors import PermanentError, UnknownSchema
from streams.model.application import Application
from streams.model.claim import claim_in
from streams.model.codecs import describe
from streams.model.envelope import FINGERPRINT, rfc3339
from streams.model.layout import DEAD_LETTERS
from streams.ports import Store

LETTERS_PATH = "/api/dead-letters"
#: Rows looked at for one answer at most.
MOST_LOOKED_AT = 5_000
#: Of bytes that will not decode, so many are shown.
MOST_HEX = 65_536
_EXACT = ("handler", "service", "error_type", "place", "message_type", "topic", "state")
#: What a query may choose letters by.
FILTERS = (*_EXACT, "key", "text", "older", "newer")


class Filter(NamedTuple):
    """Which letters are meant. `since` and `until` in epoch milliseconds."""

    exact: tuple[tuple[str, str], ...]
    key: bytes | None
    text: str
    since: float
    until: float

    def matches(self, letter: Summary) -> bool:
        """Whether a letter is meant."""
        return (
            all(getattr(letter, name) == wanted for name, wanted in self.exact)
            and (self.key is None or letter.key == self.key)
            and self.since <= letter.failed_at_ms <= self.until
            and (not self.text or self.text in f"{letter.error_type}: {letter.error_message}".lower())
        )


def filter_of(query: Query, now: float) -> Filter:
    """The filter that a query names: older and newer are ages in seconds. Raises Problem 400."""
    exact = tuple((name, query[name]) for name in _EXACT if name in query)
    key = query["key"].encode("utf-8", "surrogateescape") if "key" in query else None
    until = (now - age_of(query, "older")) * 1000 if "older" in query else float("inf")
    since = (now - age_of(query, "newer")) * 1000 if "newer" in query else float("-inf")
    return Filter(exact, key, query.get("text", "").lower(), since, until)


# -- questions --------------------------------------------------------------------------------------------


async def list_letters(view: WorkerView, query: Query, others: Others[LettersAnswer]) -> LettersAnswer:
    """A page of letters, in order of lane, partition and key; each key's in order of their source."""
    limit, meant = decode_limit(query.get("limit", "")), filter_of(query, view.now())
    lane, begin = place_of(view.application, query)
    if lane not in view.lanes:
        return await others.owner_of(view, lane, LETTERS_PATH, query)
    letters: list[LetterAnswer] = []
    looked, at = 0, b""
    async for local, data in await _rows(view, lane, begin, query):
        if looked == MOST_LOOKED_AT or len(letters) == limit:
            at = local
            break
        looked += 1
        letter = decode_summary(data)
        if meant.matches(letter):
            letters.append(summary_answer(view.application, letter_id(local), letter))
    return LettersAnswer(letters=letters, looked=looked, next=cursor_of(view.application, lane, at))


async def group_letters(view: WorkerView, query: Query, others: Others[GroupsAnswer]) -> GroupsAnswer:
    """Groups of a part of the letters."""
    meant = filter_of(query, view.now())
    lane, begin = place_of(view.application, query)
    if lane not in view.lanes:
        return await others.owner_of(view, lane, f"{LETTERS_PATH}/groups", query)
    groups: dict[tuple[str, str, str, str], _Group] = {}
    hour_ago = (view.now() - 3600) * 1000
    looked, at = 0, b""
    async for local, data in await _rows(view, lane, begin, query):
        if looked == MOST_LOOKED_AT:
            at = local
            break
        looked += 1
        letter = decode_summary(data)
        if meant.matches(letter):
            alike = letter.handler, letter.error_type, letter.place, letter.message_type
            group = groups.get(alike)
            if group is None:
                group = groups[alike] = _Group(letter, local)
            group.add(letter, hour_ago)
    found_here = [group.answer() for group in groups.values()]
    return GroupsAnswer(groups=found_here, looked=looked, next=cursor_of(view.application, lane, at))


async def show_letter(view: WorkerView, ident: str, others: Others[LetterShown]) -> LetterShown:
    """All of one letter, from its owner. Raises Problem 404 when there is none."""
    shown = await _from_owner(view, ident, others)
    # A worker that answers another one does not wait for the object store.
    return shown if others.asked_by is not None else (await with_claims(view.application, [shown]))[0]


async def _from_owner(view: WorkerView, ident: str, others: Others[LetterShown]) -> LetterShown:
    app = view.application
    partition, key = partition_and_key(app, ident)
    lane = app.layout.lane_of(partition)
    if lane not in view.lanes:
        return await others.owner_of(view, lane, f"{LETTERS_PATH}/{ident}", {})
    data = readable_store(view, lane).get(DEAD_LETTERS, store_key(partition, key))
    if data is None:
        raise Problem(
            404, "no_letter", "there is no such letter, or no more: the log of operations knows why"
        )
    letter = decode_letter(data)
    shown = _shown(app, ident, letter)
    waits = replay_waits(view, readable_store(view, lane), lane, letter)
    if letter.state is LetterState.REPLAYING:
        return replace(shown, waits=waits)
    return replace(shown, behind=waits.messages if waits is not None and waits.letter == ident else 0)


def partition_and_key(app: Application, ident: str) -> tuple[int, bytes]:
    """Where a letter lies. Raises Problem 400 when the text names none."""
    try:
        partition, key = parse_id(ident)
    except ValueError as error:
        raise Problem(400, "bad_letter", str(error)) from None
    if partition >= app.layout.partitions:
        raise Problem(400, "bad_letter", f"{ident} is of partition {partition}, and there are fewer")
    return partition, key


def replay_waits(view: WorkerView, store: Store, lane: int, letter: Summary) -> WaitingAnswer | None:
    """The queue of a letter's handler and key: its replay, or the messages before that."""
    app = view.application
    home = app.layout.home_of(letter.partition) if app.wiring.is_source(letter.topic) else None
    rows = rows_of_key(view, store, lane, letter.key or b"", behind=0, partition=home)
    return next((row for row in rows if row.handler == letter.handler), None)


# -- how --------------------------------------------------------------------------------------------------


async def _rows(
    view: WorkerView, lane: int, begin: bytes, query: Query
) -> AsyncIterator[tuple[bytes, bytes]]:
    """A lane's rows from a local key on; those of one state, where the query names it, from the index."""
    state = query.get("state", "")
    if not state or not await is_indexed(view, lane):
        return rows_of(view, DEAD_LETTERS, lane, begin)
    return _rows_of_state(view, lane, begin, state)


async def _rows_of_state(
    view: WorkerView, lane: int, begin: bytes, state: str
) -> AsyncIterator[tuple[bytes, bytes]]:
    store = readable_store(view, lane)
    first = place_of_row(LETTERS, state, DEAD_LETTERS, begin)
    for looked, found in enumerate(entries(store, LETTERS, state, width=0, begin=first), start=1):
        data = store.get(DEAD_LETTERS, found.local)
        if data is not None:
            yield found.local, data
        if looked % AT_ONCE == 0:
            await let_others()
            check_still_here(view, lane, store)


def summary_answer(app: Application, ident: str, letter: Summary) -> LetterAnswer:
    """A letter's entry in a list, by its id."""
    gone = bool(letter.handler) and app.taker(letter.handler, letter.topic) is None
    return letter_answer(ident, letter, gone=gone)


class _Group:
    """Letters that have failed alike, while they are counted. Times in epoch milliseconds."""

    def __init__(self, first: Summary, local: bytes) -> None:
        self._first, self._local = first, local
        self._oldest = self._newest = first.failed_at_ms
        self._count = self._last_hour = self._failed_again = self._replaying = 0

    def add(self, letter: Summary, hour_ago: float) -> None:
        at = letter.failed_at_ms
        self._count += 1
        self._last_hour += at >= hour_ago
        self._oldest, self._newest = min(at, self._oldest), max(at, self._newest)
        if letter.state is LetterState.REPLAYING:
            self._replaying += 1
        elif letter.replays:
            self._failed_again += 1

    def answer(self) -> GroupAnswer:
        first = self._first
        return GroupAnswer(
            handler=first.handler,
            service=first.service,
            error_type=first.error_type,
            place=first.place,
            message_type=first.message_type,
            count=self._count,
            oldest=rfc3339(self._oldest / 1000),
            newest=rfc3339(self._newest / 1000),
            example=letter_id(self._local),
            message=first.error_message,
            last_hour=self._last_hour,
            failed_again=self._failed_again,
            replaying=self._replaying,
        )


def _shown(app: Application, ident: str, letter: Letter) -> LetterShown:
    value, unreadable, claim = None, "", None
    route = app.routes.get(letter.topic)
    try:
        if route is None:
            unreadable = f"nothing handles {letter.topic} any more"
        elif letter.is_raw:
            unreadable = letter.error_message
        elif letter.value is None:
            unreadable = "it has no value" if not letter.omitted else "its value is not kept: it is too large"
        elif not letter.value and (found := claim_in(dict(letter.record.headers))) is not None:
            unreadable, claim = f"its payload is {found.reference}", claim_answer(found)
        else:
            value = describe(route.codec.decode(letter.value, dict(letter.headers).get(FINGERPRINT)))
    except (PermanentError, UnknownSchema) as error:
        unreadable = str(error)
    return LetterShown(
        letter=summary_answer(app, ident, letter),
        value=value,
        hex=(letter.value or b"")[:MOST_HEX].hex() if unreadable else "",
        unreadable=unreadable,
        claim=claim,
        headers=[(name, text_of(data or b"")) for name, data in letter.headers],
        trace=letter.trace,
        history=[event_answer(event) for event in letter.history],
        max_replays=app.lane_options.max_replays,
    )
