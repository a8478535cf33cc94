"""Handlers that an operator has paused or drains, in one lane: their rows, and the end of drains."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from streams.engine.staging.area import StagingArea
from streams.engine.staging.changes import HANDLERS, Change
from streams.engine.staging.entry import Entry
from streams.engine.staging.keys import HANDLER, name_in, prefix_in
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.operations.decisions import decide_pause, drained
from streams.engine.waiting.waiting import Waiting
from streams.model.envelope import rfc3339
from streams.model.layout import LANE
from streams.model.operations import (
    HandlerDone,
    HandlerOperation,
    HandlerPause,
    KeyDone,
    PauseState,
    RowDone,
    encode_done,
)
from streams.ports import TP, Outgoing

log = structlog.get_logger(__name__)

#: Maximum queues that are read to see whether a drain is done. While there are more, it is not.
MOST_LOOKED_AT = 200
#: Log events for the new state of a handler.
_EVENTS = {
    None: "handler_resumed",
    PauseState.PAUSED: "handler_paused",
    PauseState.DRAINING: "handler_draining",
    PauseState.DRAINED: "handler_drained",
}


def load_pauses(waiting: Waiting) -> None:
    """Shut the gates of paused handlers, and log which handlers these are."""
    states: dict[str, dict[PauseState, int]] = {}
    for local, data in waiting.staging.store.scan(HANDLERS):
        handler, pause = name_in(local).decode("utf-8", "replace"), read_pause(data)
        gate = waiting.gates.get(handler)
        if gate is not None:
            gate.set_pause(prefix_in(local), pause)
        counts = states.setdefault(handler, {})
        counts[pause.state] = counts.get(pause.state, 0) + 1
    for handler, counts in states.items():
        counts_by_state = {str(state): count for state, count in counts.items()}
        log.warning(
            "handler_is_paused", handler=handler, partitions=counts_by_state, action="steadfaust handler"
        )


def set_handler(
    waiting: Waiting, entry: Entry, operation: HandlerOperation, id_bytes: bytes, now: float
) -> str:
    """Stage an operation on a handler in the entry's partition, at `now` in epoch seconds. Returns the result
    in words.
    """
    gate = waiting.gates.get(operation.handler)
    if gate is None:
        result = f"refused: there is no handler {operation.handler}"
        entry.sends.append(_record_of(waiting, entry, operation, id_bytes, now, result, ""))
        log.info("operation", operation=str(operation.kind), handler=operation.handler, result=result)
        return result
    decided = decide_pause(gate.pauses.get(entry.prefix), operation, now_ms=int(now * 1000))
    state = decided.pause.state if decided.pause is not None else None
    if decided.changed:
        waiting.staging.put(entry, [set_pause(operation.handler, decided.pause)])
        gate.set_pause(entry.prefix, decided.pause, entry)
    result, shown = decided.result, str(state or "running")
    entry.sends.append(_record_of(waiting, entry, operation, id_bytes, now, result, shown))
    log.info(
        _EVENTS[state] if decided.changed else "operation",
        operation=str(operation.kind),
        handler=operation.handler,
        partition=entry.partition,
        who=operation.who,
        why=operation.why,
        result=result,
    )
    return result


class Drains:
    """A periodic task that ends the drains of handlers with nothing left to do."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Stage the end of drains that are done at `now`, in epoch seconds. True if there were any."""
        del room  # the end of a drain needs none
        done = False
        for _, gate in sorted(self._waiting.gates.items()):
            if not gate.drains:
                continue
            for prefix in sorted(gate.drains.keys() - self._busy(gate)):
                entry = gate.drains[prefix]
                if entry is None or entry.in_commit:  # then so is everything that came before it
                    self._end(gate, prefix, now)
                    done = True
        return done

    def _busy(self, gate: HandlerGate) -> set[bytes]:
        """The partitions in which a handler has something left to do. A running message counts: either its
        queue still has it, or it came before the operation, which is not committed yet.
        """
        due = self._waiting.queues.due_some_time(gate.handler, MOST_LOOKED_AT, gate.unroutable)
        queues = list(due)
        return set(gate.pauses) if len(queues) >= MOST_LOOKED_AT else {prefix_in(local) for local in queues}

    def _end(self, gate: HandlerGate, prefix: bytes, now: float) -> None:
        before = gate.pauses[prefix]
        after = drained(before, int(now * 1000))
        set_by_lane(self._waiting, gate, prefix, after, "drained", now, asked=before.since_ms / 1000)
        log.info(
            "handler_drained",
            handler=gate.handler,
            partition=int.from_bytes(prefix, "big"),
            who=before.who,
            why=before.why,
        )


def set_by_lane(
    waiting: Waiting,
    gate: HandlerGate,
    prefix: bytes,
    pause: HandlerPause,
    operation: str,
    now: float,
    *,
    asked: float,
) -> None:
    """Stage a pause that the lane itself sets in a partition, with its record in the log of operations.
    `now`, and when it was `asked` for, are in epoch seconds.
    """
    partition = int.from_bytes(prefix, "big")
    done = HandlerDone(
        operation=operation,
        id="",
        handler=gate.handler,
        partition=partition,
        who=pause.who,
        why=pause.why,
        asked_at=rfc3339(asked),
        at=rfc3339(now),
        result=str(pause.state),
        state=str(pause.state),
    )
    record = in_log(waiting.staging, gate.handler.encode(), done)
    waiting.staging.append(partition, [set_pause(gate.handler, pause)], [record])
    gate.set_pause(prefix, pause)


def _record_of(
    waiting: Waiting,
    entry: Entry,
    operation: HandlerOperation,
    id_bytes: bytes,
    now: float,
    result: str,
    state: str,
) -> tuple[TP, Outgoing]:
    done = HandlerDone(
        operation=str(operation.kind),
        id=id_bytes.decode("utf-8", "replace"),
        handler=operation.handler,
        partition=entry.partition,
        who=operation.who,
        why=operation.why,
        asked_at=rfc3339(operation.at_ms / 1000),
        at=rfc3339(now),
        result=result,
        state=state,
    )
    return in_log(waiting.staging, done.handler.encode(), done)


def in_log(
    staging: StagingArea, key: bytes | None, done: HandlerDone | RowDone | KeyDone
) -> tuple[TP, Outgoing]:
    """The record for the log of operations, and its partition."""
    return TP(staging.app.layout.operations_log, 0), Outgoing(key, encode_done(done), [])


_encode_pause = msgspec.msgpack.Encoder().encode
_decode_pause: Callable[[bytes], HandlerPause] = msgspec.msgpack.Decoder(HandlerPause).decode


def set_pause(handler: str, pause: HandlerPause | None) -> Change:
    """The change of a handler's row; None removes it."""
    return Change(LANE, HANDLER + handler.encode(), None if pause is None else _encode_pause(pause), pause)


def read_pause(data: bytes) -> HandlerPause:
    """A handler's row from its value. A row that cannot be read counts as a pause."""
    try:
        return _decode_pause(data)
    except ValueError as error:
        return HandlerPause(
            PauseState.PAUSED, "lane", f"its row cannot be read ({error}): pause or resume it", 0
        )
