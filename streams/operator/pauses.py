"""Handlers that an operator has paused or is draining, in one lane: their rows, and when a drain is done."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from streams.model.envelope import rfc3339
from streams.model.layout import LANE
from streams.model.operations import HandlerDone, HandlerOperation, Pause, PauseState, encode_done
from streams.operator.decisions import decide_pause, drained
from streams.ports import TP, Outgoing
from streams.retry.gate import HandlerGate
from streams.retry.waiting import Waiting
from streams.staging.changes import HANDLERS, Change
from streams.staging.entry import Entry
from streams.staging.keys import HANDLER, prefix_in, prefix_of, split_store_key

log = structlog.get_logger(__name__)

#: Queues looked at to see whether a drain is done: while more are left, it is not.
MOST_LOOKED_AT = 200
#: What the log says when a handler has come to a state.
_EVENTS = {
    None: "handler_resumed",
    PauseState.PAUSED: "handler_paused",
    PauseState.DRAINING: "handler_draining",
    PauseState.DRAINED: "handler_drained",
}


class Pauses:
    """Sets gates to what operators have decided, and stages it."""

    def __init__(self, waiting: Waiting) -> None:
        self._gates = waiting.gates
        self._queues = waiting.queues
        self._staging = waiting.staging
        self._log = TP(waiting.staging.app.layout.operations_log, 0)
        #: By handler and partition, the operation that asked for a drain; None: before this lane opened.
        self._drains: dict[tuple[str, int], Entry | None] = {}

    def load(self) -> None:
        """Learn what is paused, and write it to the log."""
        states: dict[str, dict[PauseState, int]] = {}
        for local, data in self._staging.store.scan(HANDLERS):
            partition, name = split_store_key(local)
            handler, pause = name.decode("utf-8", "replace"), read_pause(data)
            gate = self._gates.get(handler)
            if gate is not None:
                self._apply(gate, partition, pause, None)
            counts = states.setdefault(handler, {})
            counts[pause.state] = counts.get(pause.state, 0) + 1
        for handler, counts in states.items():
            counts_by_state = {str(state): count for state, count in counts.items()}
            log.warning(
                "handler_is_paused", handler=handler, partitions=counts_by_state, action="steadfaust handler"
            )

    def carry_out(self, entry: Entry, operation: HandlerOperation, id_bytes: bytes, now: float) -> str:
        """Stage what an operation does to a handler in its partition; returns that in words."""
        gate = self._gates.get(operation.handler)
        if gate is None:
            result = f"refused: there is no handler {operation.handler}"
            self._log_operation(entry, operation, id_bytes, now, result, "")
            log.info("operation", operation=str(operation.kind), handler=operation.handler, result=result)
            return result
        decided = decide_pause(gate.pauses.get(entry.prefix), operation, now_ms=int(now * 1000))
        state = decided.pause.state if decided.pause is not None else None
        if decided.changed:
            self._staging.put(entry, [set_pause(operation.handler, decided.pause)])
            self._apply(gate, entry.partition, decided.pause, entry)
        self._log_operation(entry, operation, id_bytes, now, decided.result, str(state or "running"))
        log.info(
            _EVENTS[state] if decided.changed else "operation",
            operation=str(operation.kind),
            handler=operation.handler,
            partition=entry.partition,
            who=operation.who,
            why=operation.why,
            result=decided.result,
        )
        return decided.result

    def step(self, now: float, room: int) -> bool:
        """Stage the end of drains of which all is done at `now`, epoch seconds. True when there was any."""
        del room  # it is what makes room
        if not self._drains:
            return False
        done = False
        for handler in sorted({handler for handler, _ in self._drains}):
            gate = self._gates[handler]
            partitions = {prefix_of(number): number for name, number in self._drains if name == handler}
            for number in sorted(partitions[left] for left in partitions.keys() - self._busy(gate)):
                asked = self._drains[handler, number]
                if asked is None or asked.taken:  # so has all that came before it
                    self._end(gate, number, now)
                    done = True
        return done

    def _busy(self, gate: HandlerGate) -> set[bytes]:
        """The partitions in which something is left to do by itself. What is under way is: its queue is as it
        was, or it came before the operation.
        """
        queues = list(self._queues.due_some_time(gate.handler, MOST_LOOKED_AT, gate.unroutable))
        return set(gate.pauses) if len(queues) >= MOST_LOOKED_AT else {prefix_in(local) for local in queues}

    def _end(self, gate: HandlerGate, partition: int, now: float) -> None:
        before = gate.pauses[prefix_of(partition)]
        after = drained(before, int(now * 1000))
        done = HandlerDone(
            operation="drained",
            id="",
            handler=gate.handler,
            partition=partition,
            who=before.who,
            why=before.why,
            asked_at=rfc3339(before.since_ms / 1000),
            at=rfc3339(now),
            result=str(after.state),
            state=str(after.state),
        )
        self._staging.append(partition, [set_pause(gate.handler, after)], [self._in_log(done)])
        self._apply(gate, partition, after, None)
        log.info("handler_drained", handler=gate.handler, partition=partition, who=before.who, why=before.why)

    def _apply(self, gate: HandlerGate, partition: int, pause: Pause | None, asked: Entry | None) -> None:
        gate.set_pause(prefix_of(partition), pause)
        self._drains.pop((gate.handler, partition), None)
        if pause is not None and pause.state is PauseState.DRAINING:
            self._drains[gate.handler, partition] = asked

    def _log_operation(
        self,
        entry: Entry,
        operation: HandlerOperation,
        id_bytes: bytes,
        now: float,
        result: str,
        state: str,
    ) -> None:
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
        entry.sends.append(self._in_log(done))

    def _in_log(self, done: HandlerDone) -> tuple[TP, Outgoing]:
        return self._log, Outgoing(done.handler.encode(), encode_done(done), [])


_encode_pause = msgspec.msgpack.Encoder().encode
_decode_pause: Callable[[bytes], Pause] = msgspec.msgpack.Decoder(Pause).decode


def set_pause(handler: str, pause: Pause | None) -> Change:
    """The change of a handler's row; None takes it away."""
    return Change(LANE, HANDLER + handler.encode(), None if pause is None else _encode_pause(pause), pause)


def read_pause(data: bytes) -> Pause:
    """A handler's row from its value; one that cannot be read holds the handler, as a pause does."""
    try:
        return _decode_pause(data)
    except ValueError as error:
        return Pause(PauseState.PAUSED, "lane", f"its row cannot be read ({error}): pause or resume it", 0)
