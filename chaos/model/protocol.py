"""The protocol of two workers that own one lane in turn, or at the same time, as a system to explore.

Which step is which code:

| the model | the code |
|---|---|
| learns of its lane, closes it | `LaneHost.assign`, `Lane.stop`; membership may be late by any time |
| initialises its id | `TransactionalProducer.start`: InitProducerId, repeated while markers are written |
| asks for the high watermarks, recovers | `streams.engine.life.recovery.recover`, a record at a time |
| reads position | `source_positions`: the group's against the one in the changelog |
| stages, begins and sends | `MessageAdmission`; `commit` up to AddPartitionsToTxn and AddOffsetsToTxn |
| the broker writes | Produce and TxnOffsetCommit, each on its own |
| has all answers, sends EndTxn | `TransactionalProducer.send` and `send_offsets` have returned, `commit` |
| gets the answer to its commit, writes RocksDB | `Store.apply` in `Commits.step` |
| is fenced; has an error or no answer | `discard`, `Lane._back_off`: at any point, what was sent goes on |
| is killed, loses its disk, loses power | SIGKILL at any point; a frozen worker just takes no step |
| follows as a standby | `streams.engine.life.standby` |

What is left out: owners under another number of lanes (`positions.cuts`, docs/adr/0014-cuts.md); a
second partition, and tables beyond one; handlers that run while a commit is under way (they stage over its
rows, as a larger batch does); timers and dead letters (more parts of the same transaction); compaction,
retention, and resets of positions by hand; brokers that fail (replication); the group's own protocol: who
is assigned may change at any time, workers learn of it late or never, and no step waits for membership to
be sure, which only adds behaviour. Only the input is bounded: faults may happen any number of times.

States are three numbers: of Kafka's state and of each worker's, as they were met. A worker's moves depend on
nothing else but itself and Kafka, so they are worked out once for each such pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from chaos.model.explorer import ModelStep
from chaos.model.kafka import Kafka, TransactionalId, moves
from chaos.model.rules import ONE_OWNER, broken_by_kafka, broken_by_worker, is_finished
from chaos.model.spec import Spec
from chaos.model.worker import ModelWorker, Moves, Phase

T = TypeVar("T", bound=Hashable)

State = tuple[int, int, int]


class _Numbering(Generic[T]):
    """Numbers for values, in the order in which they are met."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        """The number of a value."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class _Pair(NamedTuple):
    """A worker beside a state of Kafka: what it may do next, and which rules the two break."""

    moves: tuple[tuple[str, int, int, bool], ...]
    broken: tuple[str, ...]
    can_commit: bool
    is_finished: bool


class ProtocolModel:
    """The system of a spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._workers = (Moves(spec, 0), Moves(spec, 1))
        self._kafkas: _Numbering[Kafka] = _Numbering()
        self._owners: _Numbering[ModelWorker] = _Numbering()
        self._alone: dict[int, tuple[tuple[tuple[str, int, bool], ...], tuple[str, ...]]] = {}
        self._pairs: tuple[dict[tuple[int, int], _Pair], ...] = ({}, {})

    def initial(self) -> State:
        """An empty topic of outputs and tables, both workers idle, the lane assigned to A."""
        kafka = Kafka(ids=(TransactionalId(),) * (1 if self.spec.fixed_id else 2))
        worker = self._owners.number(ModelWorker())
        return self._kafkas.number(kafka), worker, worker

    def steps(self, state: State) -> Iterator[ModelStep[State]]:
        """What Kafka, the network, the group or a worker may do next."""
        kafka, a, b = state
        for label, then, is_fault in self._kafka(kafka)[0]:
            yield ModelStep(label, (then, a, b), is_fault)
        for label, then, worker, is_fault in self._pair(0, kafka, a).moves:
            yield ModelStep(label, (then, worker, b), is_fault)
        for label, then, worker, is_fault in self._pair(1, kafka, b).moves:
            yield ModelStep(label, (then, a, worker), is_fault)

    def broken(self, state: State) -> list[str]:
        """The rules (`chaos.model.rules`) that a state breaks."""
        kafka, a, b = state
        first, second = self._pair(0, kafka, a), self._pair(1, kafka, b)
        broken = [*self._kafka(kafka)[1], *first.broken, *second.broken]
        if first.can_commit and second.can_commit:
            broken.append(ONE_OWNER)
        return broken

    def is_goal(self, state: State) -> bool:
        """All input is committed, and the lane is open at its owner, ready for more."""
        kafka, a, b = state
        return self._pair(0, kafka, a).is_finished or self._pair(1, kafka, b).is_finished

    def _kafka(self, number: int) -> tuple[tuple[tuple[str, int, bool], ...], tuple[str, ...]]:
        known = self._alone.get(number)
        if known is None:
            kafka = self._kafkas.values[number]
            found = tuple(
                (label, self._kafkas.number(then), is_fault)
                for label, then, is_fault in moves(self.spec, kafka)
            )
            known = self._alone[number] = found, tuple(broken_by_kafka(self.spec, kafka))
        return known

    def _pair(self, which: int, kafka: int, worker: int) -> _Pair:
        pair = self._pairs[which].get((kafka, worker))
        if pair is None:
            pair = self._pairs[which][kafka, worker] = self._meet(which, kafka, worker)
        return pair

    def _meet(self, which: int, number: int, worker_number: int) -> _Pair:
        kafka, worker = self._kafkas.values[number], self._owners.values[worker_number]
        own = self._workers[which]
        found = tuple(
            (f"{'AB'[which]} {label}", self._kafkas.number(then), self._owners.number(after), is_fault)
            for label, after, then, is_fault in own.of(worker, kafka)
        )
        can_commit = own.can_commit(worker, kafka)
        # It may have been fenced since: it finds out with the next message, as it does after any fencing.
        is_open = worker.phase is Phase.READY and worker.owner and kafka.assigned == which
        return _Pair(
            found,
            tuple(broken_by_worker(kafka, worker, can_commit=can_commit)),
            can_commit,
            is_open and is_finished(self.spec, kafka),
        )
