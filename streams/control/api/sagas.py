"""Addresses of sagas."""

from __future__ import annotations

from itertools import islice

import msgspec
from msgspec.structs import replace

from streams.control.api.web_request import ApiOperation, Read, WebRequest, asks
from streams.control.base.paging import after
from streams.control.base.standby_rows import STANDBY, or_standby
from streams.control.base.view import readable_store
from streams.control.sagas.saga_answers import AskSaga, SagasAnswer, SagaShown
from streams.control.sagas.sagas import SAGAS_PATH, ask_saga, lane_of_saga, list_sagas, path_of, show_saga
from streams.control.waiting.queue_answers import rows_of_key
from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import LetterState, decode_summary
from streams.model.layout import DEAD_LETTERS
from streams.model.row_keys import row_key

#: Causes of each kind that a saga names.
MOST_CAUSES = 5
_decode_ask = msgspec.json.Decoder(AskSaga).decode


async def saga(request: WebRequest) -> SagaShown:
    """A saga; while it has not ended, its owner says what of its key waits, and for what. Raises Problem."""
    view, ident = request.view, request.names["saga"]
    shown = await _shown(request, ident)
    if shown.stale or shown.owner != view.url or shown.saga.status in ("completed", "compensated"):
        return shown
    key, store = ident.partition(":")[2].encode("utf-8", "surrogateescape"), readable_store(view, shown.lane)
    rows = islice(rows_of_key(view, store, shown.lane, key, behind=0), MOST_CAUSES)
    causes = [f"{row.type} waits for {row.handler}: {row.why}; until {row.until}" for row in rows]
    first = store_key(shown.partition, row_key(key))
    for _, data in islice(store.scan(DEAD_LETTERS, start=first, stop=after(first)), MOST_CAUSES):
        letter = decode_summary(data)
        if letter.state is not LetterState.DISCARDED:
            what = f"{letter.message_type} is a dead letter of {letter.handler or 'no handler'}"
            causes.append(f"{what}: {letter.error_type}: {letter.error_message}")
    return replace(shown, causes=causes)


async def _shown(request: WebRequest, ident: str) -> SagaShown:
    """From its owner; on a page from a standby, where the owner does not answer. Raises Problem."""
    view, others, copied = request.view, request.others(SagaShown), {STANDBY: "1"}
    if not request.may_be_stale:
        return await show_saga(view, ident, request.rows_query, others)
    found, why = await or_standby(
        view,
        lane_of_saga(view, ident),
        lambda: show_saga(view, ident, request.rows_query, others),
        lambda: show_saga(view, ident, copied, others),
        lambda url: others.ask(url, path_of(ident), copied),
    )
    return replace(found, stale=replace(found.stale, why=why)) if found.stale and why else found


async def _operate(request: WebRequest) -> msgspec.Struct:
    wanted = request.json(_decode_ask)
    return await ask_saga(request.view, request.names["saga"], wanted, request.others(SagaShown))


ROUTES = (
    Read(SAGAS_PATH, asks(list_sagas, SagasAnswer)),
    Read(f"{SAGAS_PATH}/{{saga}}", saga),
    ApiOperation(f"{SAGAS_PATH}/{{saga}}/operations", _operate),
)
