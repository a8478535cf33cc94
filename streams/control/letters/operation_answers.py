"""How operations on dead letters have ended. A lane's inbox has its answer beside the operation's id, also
where it refused, or the letter is gone; the letter's row says how a replay went on.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from streams.control.base.lane_rows import Query
from streams.control.base.others import Others
from streams.control.base.paging import after
from streams.control.base.view import Problem, WorkerView, readable_store
from streams.control.letters.jobs import operation_id, source_of
from streams.control.letters.letter_answers import OutcomesAnswer, SettledAnswer
from streams.control.letters.letters import LETTERS_PATH, partition_and_key, replay_waits
from streams.engine.staging.inbox import Inbox, source_prefix
from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import LetterState, Summary, decode_summary
from streams.engine.waiting.operations.admission import OPERATIONS
from streams.model.layout import DEAD_LETTERS
from streams.model.operations import LetterCommand
from streams.model.row_keys import row_key, split_row_key
from streams.ports import Store

OUTCOMES_PATH = f"{LETTERS_PATH}/outcomes"
#: Characters of ids in one request to another worker: they are a part of its address.
MOST_IN_ADDRESS = 4_000
_REFUSED = "refused: "
_REPLAYS = (LetterCommand.REPLAY, LetterCommand.EDIT)


async def settled(view: WorkerView, ident: str, query: Query, others: Others[SettledAnswer]) -> SettledAnswer:
    """How an operation of `job` on a letter has ended, from its owner. Raises Problem."""
    partition, _ = partition_and_key(view.application, ident)
    operation = _operation(query.get("operation", ""))
    lane = view.application.layout.lane_of(partition)
    if lane not in view.lanes:
        return await others.owner_of(view, lane, f"{LETTERS_PATH}/{quote(ident, safe='')}/answer", query)
    return _settled_here(view, lane, ident, operation, query.get("job", ""))


async def outcomes(view: WorkerView, query: Query, others: Others[OutcomesAnswer]) -> OutcomesAnswer:
    """The same of many: `letters` has their ids, with commas. Those of silent lanes are missing."""
    operation, job = _operation(query.get("operation", "")), query.get("job", "")
    found: list[SettledAnswer] = []
    elsewhere: dict[str, list[str]] = {}
    for ident in filter(None, query.get("letters", "").split(",")):
        lane = view.application.layout.lane_of(partition_and_key(view.application, ident)[0])
        owner = view.assignment.owners.get(lane)
        if lane in view.lanes:
            try:
                found.append(_settled_here(view, lane, ident, operation, job))
            except Problem as problem:
                if problem.status < 500:
                    raise
        elif others.asked_by is None and owner is not None:
            elsewhere.setdefault(owner, []).append(ident)
    for owner, idents in elsewhere.items():
        for some in _sliced(idents):
            try:
                answer = await others.ask(owner, OUTCOMES_PATH, {**query, "letters": ",".join(some)})
            except Problem:  # its letters are missing in the answer, as documented
                break
            found += answer.outcomes
    return OutcomesAnswer(outcomes=found)


def _sliced(idents: Sequence[str]) -> list[list[str]]:
    slices: list[list[str]] = [[]]
    for ident in idents:
        if sum(map(len, slices[-1])) + len(ident) > MOST_IN_ADDRESS and slices[-1]:
            slices.append([])
        slices[-1].append(ident)
    return slices


def _settled_here(
    view: WorkerView, lane: int, ident: str, operation: LetterCommand, job: str
) -> SettledAnswer:
    app, store = view.application, readable_store(view, lane)
    partition, key = partition_and_key(app, ident)
    prefix = source_prefix(OPERATIONS, source_of(app).encode())
    local = store_key(partition, prefix + operation_id(job, operation, ident))
    note = Inbox.note_of(store, local)
    result = (note or b"").decode("utf-8", "replace")
    outcome, detail = "", ""
    if result.startswith(_REFUSED):
        outcome, detail = "refused", result.removeprefix(_REFUSED)
    elif note is not None and operation in _REPLAYS:
        outcome, detail = _replay_outcome(view, store, lane, partition, key)
    elif note is not None:
        outcome = "done"
    return SettledAnswer(
        letter=ident,
        operation=str(operation),
        job=job,
        settled=note is not None,
        result=result,
        outcome=outcome,
        detail=detail,
    )


def _replay_outcome(view: WorkerView, store: Store, lane: int, partition: int, key: bytes) -> tuple[str, str]:
    """How a replay that a lane has taken goes on, and why it failed or waits."""
    data = store.get(DEAD_LETTERS, store_key(partition, key))
    message_key, place = split_row_key(key)
    handler = place.partition(b"\0")[0].decode("utf-8", "replace")
    letter = None if data is None else decode_summary(data)
    if letter is None and not handler:  # all its handlers have it: each may have given it up
        letter = _given_up_by_one(store, partition, message_key, place)
    if letter is None:
        return "handled", ""
    if letter.state is LetterState.REPLAYING:
        waits = replay_waits(view, store, lane, letter)
        return "waiting", "" if waits is None else f"{waits.why}, until {waits.until}"
    if letter.state is LetterState.DISCARDED:
        return "discarded", ""
    by = f"{letter.handler}: " if letter.handler != handler else ""
    return "failed", f"{by}{letter.error_type}: {letter.error_message}"


def _given_up_by_one(store: Store, partition: int, key: bytes, place: bytes) -> Summary | None:
    """A letter of the same record, of one of its handlers."""
    _, topic, offset = place.split(b"\0", 2)
    first = store_key(partition, row_key(key))
    for local, data in store.scan(DEAD_LETTERS, start=first, stop=after(first)):
        other = split_row_key(local[len(store_key(partition, b"")) :])[1].split(b"\0", 2)
        if other[0] and other[1:] == [topic, offset]:
            return decode_summary(data)
    return None


def _operation(text: str) -> LetterCommand:
    try:
        return LetterCommand(text)
    except ValueError:
        names = ", ".join(LetterCommand)
        raise Problem(400, "bad_operation", f"operation is {text!r}: use one of {names}") from None
