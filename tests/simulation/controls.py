"""Negative controls: the real code without one of its protections. The simulation has to find each.

`python -m tests.simulation --controls` prints which seed finds which. Where another protection covers a
mistake, as the inbox covers a repetition, that one is off too, as in `chaos.model.controls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from chaos.controls.hasty import HastyLane
from streams.engine.life import host as lane_host
from streams.engine.life import lane as lane_module
from streams.engine.life import opening, recovery
from streams.engine.life.ahead import TimesAhead
from streams.engine.life.lane import Lane
from streams.engine.life.positions import declared, log_cuts
from streams.engine.staging import commit_order
from streams.engine.staging.changes import POSITIONS
from streams.engine.staging.keys import position_key
from streams.engine.staging.payloads import Payloads
from streams.engine.staging.position import decode_position
from streams.engine.staging.refusals import Refusals
from streams.engine.staging.timers import DueIndex
from streams.engine.waiting import waiting
from streams.engine.waiting.long_queues import LongQueues
from streams.engine.waiting.timers import Timers
from streams.engine.waiting.waiting import Waiting
from streams.engine.way import intake, permission
from streams.engine.way.changelog_ends import ChangelogEnds
from streams.errors import Lost, PositionLost, PositionsDisagree
from streams.model import codecs
from streams.model.envelope import LOOPBACK
from streams.model.policy import reopening
from streams.ports import TP, Note, Outgoing, Record, Store, Stores, Transactions
from streams.saga import participant
from streams.saga.steps import Step as SagaStep
from streams.saga.turn import Turn
from streams.testing.broker import FakeBroker, ProducerState
from streams.testing.clients import FakeReader, FakeTransactions
from streams.testing.log import TransactionState
from streams.testing.simulation import machines
from streams.testing.simulation.machines import Network
from streams.testing.store import MemoryStore
from tests.simulation.control import ENDS, QUARANTINED, Control, Off, all_off, no_inbox, off
from tests.simulation.holes import HOLES

# -- of chaos.model and chaos.controls ----------------------------------------------------------------------


def _unfenced() -> Off:
    real = Network.transactions

    def transactions(self: Network, transactional_id: str) -> Transactions:
        return real(self, f"{transactional_id}-of-{self._machine.name}")

    return patch.object(Network, "transactions", transactions)


def _letters_apart() -> Off:
    real = FakeTransactions.send

    async def send(self: FakeTransactions, batches: Mapping[TP, Sequence[Outgoing]]) -> dict[TP, int]:
        for tp, some in batches.items():
            if tp.topic.endswith(".dlq"):
                for each in some:
                    self._broker.produce(tp, *each)
        return await real(self, {tp: some for tp, some in batches.items() if not tp.topic.endswith(".dlq")})

    return patch.object(FakeTransactions, "send", send)


def _offsets_outside() -> Off:
    async def send_offsets(
        self: FakeTransactions, offsets: Mapping[TP, int], group: str, _: Mapping[TP, Note]
    ) -> None:
        self._broker.groups.setdefault(group, {}).update(offsets)

    return patch.object(FakeTransactions, "send_offsets", send_offsets)


def _reused_after_doubt() -> Off:
    real = machines._Producer.commit

    async def commit(self: Any) -> None:
        try:
            await real(self)
        except Exception:  # noqa: BLE001 - that is the mistake
            self._lost = ""

    return patch.object(machines._Producer, "commit", commit)


def _unawaited_sends() -> Off:
    real = machines._Producer.send

    async def send(self: Any, batches: Mapping[TP, Sequence[Outgoing]]) -> dict[TP, int]:
        try:
            return await real(self, batches)
        except Exception:  # noqa: BLE001 - that is the mistake
            self._lost, self._inner._failure = "", None
            return {}

    return patch.object(machines._Producer, "send", send)


async def _committed(lane: Lane) -> dict[TP, int]:
    layout = lane._app.layout
    tps = [TP(topic, number) for topic in lane.topics for number in layout.partitions_of(lane.number)]
    return await lane._cluster.committed(layout.app_id, tps)


async def _uncompared(
    app: Any, sources: Sequence[TP], store: Store, cluster: Any, committed: Mapping[TP, int]
) -> Any:
    """The group's positions, whatever the changelog says."""
    begins = await cluster.begin_offsets(sources)
    ahead = {}
    for tp in sources:
        data = store.get(POSITIONS, position_key(tp, app.layout.partitions))
        if data is not None and (ranges := decode_position(data).ahead):
            ahead[tp] = ranges
    return {tp: committed.get(tp, begins[tp]) for tp in sources}, ahead, set()


def _positions_first() -> Off:
    """A lane that opens asks for positions, then fences."""
    early: dict[int, dict[TP, int]] = {}
    real = Lane._open

    async def begin(self: Lane, producer: Any, reader: Any) -> Any:
        early[id(self.store)] = await _committed(self)
        return await real(self, producer, reader)

    async def positions(app: Any, sources: Sequence[TP], store: Store, cluster: Any) -> Any:
        return await _uncompared(app, sources, store, cluster, early.pop(id(store)))

    return all_off(off(Lane, "_open", begin), off(opening, "source_positions", positions))()


def _recovery_first() -> Off:
    """A lane that opens recovers to the last stable offset, then fences."""
    real = Lane._open

    class Stable:
        """Knows last stable offsets alone."""

        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        async def end_offsets(self, tps: Any) -> dict[TP, int]:
            await self._cluster.end_offsets(tps)
            return {tp: self._cluster._cluster.log(tp).stable for tp in tps}

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

    async def begin(self: Lane, producer: Any, reader: Any) -> Any:
        assert self.store is not None
        stable: Any = Stable(self._cluster)
        ports, remaining = replace(self._ports, cluster=stable), self.measures.recovering
        await recovery.recover(self._app, self.number, ports, self.store, reader, self._writes, remaining)
        return await real(self, producer, reader)

    async def recovered(*_: Any, **__: Any) -> int:
        return 0

    async def positions(app: Any, sources: Sequence[TP], store: Store, cluster: Any) -> Any:
        committed = await cluster.committed(app.layout.app_id, sources)
        return await _uncompared(app, sources, store, cluster, committed)

    return all_off(
        off(Lane, "_open", begin),
        off(opening, "recover", recovered),
        off(opening, "source_positions", positions),
    )()


def _stops_at_once() -> Off:
    real = recovery.source_positions

    async def positions(*asked: Any) -> Any:
        try:
            return await real(*asked)
        except PositionsDisagree as error:
            raise PositionLost(str(error)) from error

    return patch.object(opening, "source_positions", positions)


def _late_positions() -> Off:
    real = FakeBroker.end

    def end(self: FakeBroker, producer: ProducerState, state: TransactionState) -> None:
        transaction, loop = producer.transaction, asyncio.get_running_loop()
        if transaction is None or state is not TransactionState.COMMITTED:
            real(self, producer, state)
            return
        offsets, transaction.offsets = transaction.offsets, {}
        real(self, producer, state)
        for group, positions in offsets.items():
            loop.call_later(3.0, self.groups.setdefault(group, {}).update, positions)

    return patch.object(FakeBroker, "end", end)


def _unwritten_payloads() -> Off:
    async def write(*_: Any) -> None:
        """Nothing is."""

    return patch.object(Payloads, "write", write)


def _left_in_doubt() -> Off:
    real = Turn._is_to_be_undone

    def is_to_be_undone(self: Turn, step: SagaStep) -> bool:
        return real(self, step) and self.state(step).status == "completed"

    return patch.object(Turn, "_is_to_be_undone", is_to_be_undone)


# -- others ------------------------------------------------------------------------------------------------


def _marked_by_header(record: Record, group: bytes) -> bool:
    """What a lane knew its own looped records by, before they had to be of its own producers."""
    headers: Any = record.headers
    return bool(headers) and headers[-1][0] == LOOPBACK and headers[-1][1] == group


def _wiped(stores: Stores, store: Store | None, _error: Any, lane: int) -> None:
    """What became of a store with any trouble."""
    if store is not None:
        store.close()
    stores.destroy(lane)


def _held() -> Off:
    """What an error that was kept did: its traceback held RocksDB's handles, and with them the lock."""
    real = MemoryStore.close

    def close(self: MemoryStore) -> None:
        if not self._failed:
            real(self)

    return patch.object(MemoryStore, "close", close)


def _waits_for_nothing() -> Off:
    return all_off(
        off(reopening, "waited_out", lambda _: ""),
        off(lane_module, "waited_out", lambda _: ""),
        off(reopening, "is_expected", lambda _: False),
    )()


async def _nothing_lost(*_: Any) -> dict[TP, Lost]:
    return {}


CONTROLS: Mapping[str, Control] = {
    "": Control("nothing is missing", nullcontext),
    "no-inbox": Control("no topic is checked for what came before", no_inbox),
    "no-fencing": Control("each machine has transactional ids of its own", _unfenced),
    "unnoted-ahead": Control(
        "what is handled above a position is not noted with it (no inbox)",
        all_off(off(commit_order, "encode_position", lambda offset, *_: b"%d" % offset), no_inbox),
        once=True,
    ),
    "unmarked-loop": Control(
        "what a lane has sent itself and handled is handled again when read",
        off(intake, "was_looped", lambda *_: False),
    ),
    "store-before-commit": Control(
        "a store is written before the transaction is committed", off(lane_host, "Lane", HastyLane)
    ),
    "positions-before-fencing": Control(
        "positions are read, then the old owner is fenced (no inbox)",
        all_off(_positions_first, no_inbox),
        once=True,
    ),
    "recovery-before-fencing": Control(
        "a lane recovers to the last stable offset, then fences the old owner", _recovery_first
    ),
    "reuse-after-doubt": Control("a commit whose answer is lost is taken for done", _reused_after_doubt),
    "offsets-outside": Control("positions are committed beside the transaction", _offsets_outside),
    "unawaited-sends": Control("a commit does not wait for the answers to what was sent", _unawaited_sends),
    "stop-at-first-disagreement": Control(
        "positions that disagree once count as lost", _stops_at_once, "it does not settle"
    ),
    "old-brokers": Control(
        "InitProducerId is answered before the group's positions are in place",
        _late_positions,
        "it does not settle",
    ),
    "letters-apart": Control("dead letters are sent outside the transaction", _letters_apart),
    "unwritten-payloads": Control(
        "what an outcome refers to is not written before it is staged", _unwritten_payloads
    ),
    "left-in-doubt": Control(
        "a step of which nobody knows whether it was done is not undone", _left_in_doubt
    ),
    "forgetful-participants": Control(
        "participants do not know what they have answered", off(participant, "_known", lambda *_: None)
    ),
    "key-order": Control(
        "what is decided is committed before earlier messages of its key",
        off(commit_order._Look, "may_go", lambda _, entry: entry.done and entry.key is not None),
    ),
    "unknown-queues": Control(
        "a lane that opens does not know what waits", off(Waiting, "load", lambda *_: None)
    ),
    "retry-overtaken": Control(
        "a message does not wait behind an earlier one of its key",
        all_off(*(off(each, "queues_of", lambda *_: (b"none", b"none")) for each in (permission, waiting))),
    ),
    "timer-unheard": Control(
        "a timer that is set for a time which has passed is not looked for",
        off(DueIndex, "written", lambda *_: None),
    ),
    "timer-twice": Control(
        "a timer rings again while its message is in a commit (no inbox)",
        all_off(off(Timers, "_is_staged", lambda *_: False), no_inbox),
        once=True,
    ),
    "times-ahead": Control(
        "what a clock that was ahead has put too far away stays there",
        off(TimesAhead, "step", lambda *_: False),
        "it does not settle",
    ),
    "unchecked-cuts": Control(
        "logs are not compared with what was read and written of them: neither epochs nor ends",
        all_off(
            off(log_cuts, "lost", _nothing_lost),
            off(FakeReader, "_require_same", lambda *_: None),
            off(ChangelogEnds, "check", lambda *_: None),
        ),
        "a message in its log is not skipped",
    ),
    "hole-1-numbers": Control(
        "a row is written that does not read back as what it is",
        off(codecs.JsonCodec, "encode", lambda codec, value: codec._encode(value)),
        "nothing good is given up",
    ),
    "hole-2-refusals": Control("a refusal that passes quarantines the lane", _waits_for_nothing, QUARANTINED),
    "hole-2-blame": Control(
        "a message that is refused alone becomes no dead letter",
        off(Refusals, "blame", lambda *_: False),
    ),
    "hole-3-full-disk": Control(
        "a store is wiped for whatever trouble of the disk", off(lane_module, "let_go", _wiped), ENDS
    ),
    "held-store": Control("a store that has failed is not let go of", _held, "it does not settle"),
    "hole-4-stamps": Control(
        "whoever writes from outside stamps its records", off(declared, "BY_BROKER", "CreateTime")
    ),
    "hole-10-hot-key": Control(
        "a partition is read on while a queue of one of its keys is near its bound",
        off(LongQueues, "held_back", lambda *_: frozenset()),
        "nothing good is given up",
    ),
    "hole-5-forged-mark": Control(
        "a header alone says that a record was handled", off(intake, "was_looped", _marked_by_header)
    ),
    **HOLES,
}
