"""Negative controls: what `chaos.controls.recorded` breaks by hand, and mended holes."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import msgspec

from streams.engine.life import cluster_checks, opening
from streams.engine.staging.area import StagingArea
from streams.engine.staging.changelog import Staged
from streams.engine.staging.commit_order import CommitOrder
from streams.engine.staging.loops import Loops
from streams.engine.staging.position import decode_position, encode_position
from streams.engine.staging.unreadable import UnreadableRows
from streams.engine.waiting import due
from streams.engine.way import permission
from streams.engine.way.held_up import HeldUpPartitions
from streams.engine.way.intake import Intake
from streams.engine.way.loopback import Loopback
from streams.errors import StoreBroken
from streams.model import claim_checks as checks
from streams.model.codecs import AvroCodec
from streams.model.envelope import Envelope
from streams.model.outcome import Timer, nothing
from streams.model.policy import assignment
from streams.model.policy.fitness import Fitness
from streams.ports import TP, Batch, OwnRecord, Record
from streams.saga import engine, participant
from streams.saga.participant import _Taking
from streams.saga.state import Transition
from streams.saga.steps import Step as SagaStep
from streams.saga.turn import Turn
from streams.testing.broker import FakeBroker
from streams.testing.clients import FakeReader
from streams.testing.simulation.machines import running
from tests.simulation.control import Control, Off, all_off, off

# -- of chaos.controls.recorded ------------------------------------------------------------------------------


def _lost_replies() -> Off:
    real = _Taking.after

    def after(self: _Taking, command: Any, answer: Any) -> Any:
        decided = real(self, command, answer)
        sends = decided.send if answer.status == "later" else decided.send[:-1]
        return msgspec.structs.replace(decided, send=sends)

    return patch.object(_Taking, "after", after)


def _late_replies() -> Off:
    """A reply comes 15 seconds after its step was done, before the deadline of a patient step."""
    real = _Taking.after

    def after(self: _Taking, command: Any, answer: Any) -> Any:
        decided, process = real(self, command, answer), running()
        if answer.status == "later" or process is None:
            return decided
        *sends, reply = decided.send
        timer = Timer(f"reply-{command.command_id}", process.machine.clock.now() + 15.0, reply)
        return msgspec.structs.replace(decided, send=sends, timers=[*decided.timers, timer])

    return patch.object(_Taking, "after", after)


def _not_undone() -> Off:
    real = Turn._is_to_be_undone

    def is_to_be_undone(self: Turn, step: SagaStep) -> bool:
        return step.name != "reserve" and real(self, step)

    return patch.object(Turn, "_is_to_be_undone", is_to_be_undone)


def _timers_left() -> Off:
    real = engine.outcome_of

    def outcome_of(transition: Transition, log: Any) -> Any:
        return real(transition._replace(cancel=[]), log)

    return patch.object(engine, "outcome_of", outcome_of)


def _passed_over() -> Off:
    real = CommitOrder._reach

    def reach(self: CommitOrder, staged: Staged, tp: TP) -> bytes:
        position = decode_position(real(self, staged, tp))
        end = staged.offsets[tp] = position.ahead[-1][1] if position.ahead else position.offset
        return encode_position(end)

    return patch.object(CommitOrder, "_reach", reach)


def _stored_rows() -> Off:
    real = StagingArea._read

    def read(staging: StagingArea, *of: Any) -> Any:
        stored: Any = SimpleNamespace(get=lambda *_: None, store=staging.store, unreadable=staging.unreadable)
        return real(stored, *of)

    return patch.object(StagingArea, "_read", read)


# -- holes ---------------------------------------------------------------------------------------------------


def _read_by_name() -> Off:
    real = FakeReader.assign

    async def assign(self: FakeReader, positions: Mapping[TP, int], *_: Any) -> None:
        await real(self, positions)

    return all_off(off(FakeReader, "assign", assign), off(cluster_checks, "ASK_INTERVAL", 600.0))()


def _loops_unlimited() -> Off:
    real = Loopback.__init__

    def begin(self: Loopback, attempts: Any, loops: Any, _: Any) -> None:
        real(self, attempts, loops, lambda: 1_000_000)

    return patch.object(Loopback, "__init__", begin)


def _loops_beside_others() -> Off:
    def may_loop(self: Loops, tp: TP, key: bytes) -> bool:
        return (tp.topic, key) not in self._before and tp not in self._ends

    return patch.object(Loops, "may_loop", may_loop)


def _ids_alone() -> Off:
    """What others have written is read first; but of two unhandled messages with one id one counts."""
    written: WeakKeyDictionary[Any, dict[TP, int]] = WeakKeyDictionary()
    produce = FakeBroker.produce

    def produced(self: FakeBroker, tp: TP, *more: Any) -> int:
        offset = written.setdefault(get_running_loop(), {})[tp] = produce(self, tp, *more)
        return offset

    def add(self: Loops, topic: str, key: bytes, name: bytes) -> None:
        self._before.setdefault((topic, key), {})[name] = 1

    def add_read(self: Loops, record: Record, message_id: bytes) -> None:
        tp = TP(record.topic, record.partition)
        vars(self).setdefault("read", {})[tp] = record.offset
        if not isinstance(record, OwnRecord):
            self.foreign.add(tp)
        add(self, record.topic, record.key or b"", message_id)

    def remove_read(self: Loops, record: Record) -> None:
        self.remove(record.topic, record.key or b"", Envelope(record).id_bytes)

    def may_loop(self: Loops, tp: TP, key: bytes) -> bool:
        unread = written.get(get_running_loop(), {}).get(tp, -1) > vars(self).get("read", {}).get(tp, -1)
        return (tp.topic, key) not in self._before and tp not in self._ends and not unread

    return all_off(
        off(FakeBroker, "produce", produced),
        off(Loops, "add", add),
        off(Loops, "add_read", add_read),
        off(Loops, "remove_read", remove_read),
        off(Loops, "may_loop", may_loop),
    )()


def _unread_partitions() -> Off:
    def none(*_: Any) -> list[TP]:
        return []

    return all_off(off(cluster_checks, "added_partitions", none), off(opening, "added_partitions", none))()


def _done_too_late() -> Off:
    real = participant._before

    def before(command: Any, *of: Any, **how: Any) -> Any:
        return real(command if command.asks else msgspec.structs.replace(command, expires=0.0), *of, **how)

    return patch.object(participant, "_before", before)


def _one_schema() -> Off:
    real = AvroCodec._writer

    def writer(self: AvroCodec[Any], fingerprint: bytes) -> Any:
        return real(self, fingerprint) if running() is None else (None, self._ranges)

    return patch.object(AvroCodec, "_writer", writer)


def _ended_by_a_row() -> Off:
    def row(_: UnreadableRows, table: str, __: bytes, error: Exception) -> Exception:
        return StoreBroken(f"{table}: {error}")

    return patch.object(UnreadableRows, "row", row)


def _dropped() -> Off:
    real = Intake._accept

    def accept(self: Intake, batch: Batch) -> int:
        real(self, batch)
        return len(batch.records)

    return patch.object(Intake, "_accept", accept)


HOLES: Mapping[str, Control] = {
    "lost-replies": Control("what a participant has answered is not sent to the saga", _lost_replies),
    "late-replies": Control("what a participant has answered is sent to the saga late", _late_replies),
    "not-undone": Control("a step of a saga that was done is not undone", _not_undone),
    "timers-left": Control("a deadline stays when its step has been answered", _timers_left),
    "done-too-late": Control("a command is done after it has expired", _done_too_late),
    "tried-too-late": Control(
        "a message that waits is tried after it has expired",
        all_off(off(due, "_check_deadline", lambda *_: None), off(permission, "_expired", lambda *_: None)),
    ),
    "one-schema": Control("a lane reads Avro by its own schema, whoever wrote it", _one_schema),
    "unchecked-payloads": Control(
        "a payload is not compared with what was checked in", off(checks, "verify", lambda *_: None)
    ),
    "passed-over": Control("a position passes by a message that is still under way", _passed_over),
    "dropped-when-full": Control("a lane drops what it cannot take while it is full", _dropped),
    "stored-rows": Control("a handler is given a row without what is to be committed", _stored_rows),
    "hole-1-unreadable-row": Control(
        "a row that cannot be read is a damaged store", _ended_by_a_row, "no lane_error"
    ),
    "hole-2-handover": Control(
        "a worker that cannot commit keeps its lanes",
        off(Fitness, "look", lambda *_, **__: False),
        "lanes move to a worker that can commit",
    ),
    "hole-6-loopback": Control(
        "what loops back does not count as a part of its transaction", _loops_unlimited, "it does not settle"
    ),
    "hole-7-foreign-writer": Control(
        "a lane handles what it sends itself before what others have written there", _loops_beside_others
    ),
    "hole-7-one-id": Control(
        "two unhandled records of one id, topic and key count as one",
        _ids_alone,
        "each record of one id has its turn",
    ),
    "hole-8-one-name": Control(
        "another application of the same name is a member as any other",
        off(assignment, "_group_wiring", lambda members, _: dict(members)),
        "another application is refused",
    ),
    "hole-9-topic-again": Control(
        "a topic is read by its name, and looked at every ten minutes",
        _read_by_name,
        "effects are in the order of the log",
    ),
    "hole-9-added-partition": Control("an added partition is not read", _unread_partitions),
    "hole-11-open-transaction": Control(
        "a lane does not look what holds it up",
        off(HeldUpPartitions, "_look", lambda *_: None),
    ),
    "hole-12-second-start": Control(
        "another start of a saga, with other content, leaves no trace",
        off(engine, "start_again", lambda _, row, *__: Transition(row, [], [], [], [])),
    ),
    "hole-12-unanswered-start": Control(
        "another start of a saga, with other content, is in its log alone",
        off(Turn, "tell_of", lambda *_: None),
        "a further start of a saga is answered",
    ),
    "hole-12-stray-reply": Control(
        "a reply for a saga that there is not leaves no trace",
        off(engine, "_ignored", lambda *_: nothing("there is no such saga")),
    ),
    "hole-23-changed-steps": Control(
        "a saga goes on by other steps than it began with", off(engine, "fits", lambda *_: True)
    ),
}
