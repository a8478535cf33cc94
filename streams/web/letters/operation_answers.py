"""What a lane has answered to an operation on a dead letter. Its inbox has the answer beside the operation's
id, also where it was refused, or the letter is gone.
"""

from __future__ import annotations

from urllib.parse import quote

from streams.model.operations import LetterCommand
from streams.operator.admission import OPERATIONS
from streams.staging.inbox import Inbox, source_prefix
from streams.staging.keys import store_key
from streams.web.base.lane_rows import AskOwner, Query, elsewhere
from streams.web.base.view import Problem, WorkerView, readable_store
from streams.web.letters.jobs import operation_id, source_of
from streams.web.letters.letter_answers import SettledAnswer
from streams.web.letters.letters import partition_and_key


async def settled(
    view: WorkerView, ident: str, query: Query, *, asked_by: str | None, ask: AskOwner
) -> SettledAnswer:
    """The answer to an operation of `job` on a letter, from its owner. Raises Problem."""
    app = view.application
    partition, _ = partition_and_key(app, ident)
    operation, job = _operation(query.get("operation", "")), query.get("job", "")
    lane = app.layout.lane_of(partition)
    if lane not in view.lanes:
        path = f"/api/dead-letters/{quote(ident, safe='')}/answer"
        found: SettledAnswer = await elsewhere(view, lane, path, query, asked_by, ask)
        return found
    prefix = source_prefix(OPERATIONS, source_of(app).encode())
    local = store_key(partition, prefix + operation_id(job, operation, ident))
    note = Inbox.note_of(readable_store(view, lane), local)
    return SettledAnswer(
        letter=ident,
        operation=str(operation),
        job=job,
        settled=note is not None,
        result=(note or b"").decode("utf-8", "replace"),
    )


def _operation(text: str) -> LetterCommand:
    try:
        return LetterCommand(text)
    except ValueError:
        names = ", ".join(LetterCommand)
        raise Problem(400, "bad_operation", f"operation is {text!r}: use one of {names}") from None
