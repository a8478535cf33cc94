"""A worker's side of the model: the life of its lane, and its standby when it has not got the lane.

A frozen worker is one that takes no step for a while: in every state it may stand still, for as long as the
others like, and wake up. So neither freezing nor the session timeout has a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from chaos.model import kafka as broker
from chaos.model.kafka import Ids, Kafka, ModelTransaction, StagedTransaction, stable
from chaos.model.spec import Opening, Spec
from chaos.model.store import ModelStore, applied, copies, cut_short


class Phase(IntEnum):
    """The phase of a lane. What is between two of these has no effect that another worker could see."""

    IDLE = 0  # without the lane, perhaps as its standby; a dead worker is one that stays so
    OPENING = 1
    READY = 2
    SENDING = 3
    ENDING = 4
    STOPPED = 5  # by PositionLost


class HandlingMode(IntEnum):
    """How messages are handled."""

    APART = 0  # what they send is handled when it was read
    LOOPED = 1  # what they send is handled in the same transaction
    READ_BACK = 2  # they were sent, and read


class ModelWorker(NamedTuple):
    """A worker; an `owner` knows that the lane is its own. `opened` counts the opening steps that are done,
    `ends` is up to where it recovers or has written the changelogs, `at` its position in the source, `ahead`
    what it has handled above that, `read` its position in the outputs, `batch` which messages are staged,
    and `way` how, `disagreed` the two positions that did so when it last opened.
    """

    phase: Phase = Phase.IDLE
    owner: bool = False
    store: ModelStore = ModelStore()
    opened: int = 0
    ends: tuple[int, int] | None = None
    at: int = 0
    ahead: Ids = ()
    batch: Ids = ()
    read: int = 0
    way: HandlingMode = HandlingMode.APART
    disagreed: tuple[int, int] | None = None

    def closed(self, phase: Phase) -> ModelWorker:
        """Without all that a session has in memory; what it has seen disagree is kept for the next one."""
        return ModelWorker(phase, self.owner, self.store, disagreed=self.disagreed)


class Move(NamedTuple):
    """What a worker may do next, and what that makes of it and of Kafka."""

    label: str
    worker: ModelWorker
    kafka: Kafka
    is_fault: bool = False


class Moves:
    """What one worker may do."""

    def __init__(self, spec: Spec, number: int) -> None:
        self._spec = spec
        self._number = number
        self._id = 0 if spec.fixed_id else number
        self._phases: dict[Phase, Callable[[ModelWorker, Kafka], Iterator[Move]]] = {
            Phase.IDLE: self._follow,
            Phase.OPENING: self._open,
            Phase.READY: self._stage,
            Phase.SENDING: self._finish_sending,
            Phase.ENDING: self._finish_commit,
        }

    def can_commit(self, worker: ModelWorker, kafka: Kafka) -> bool:
        """Whether Kafka would take a commit from it: it is open, and not fenced."""
        is_open = worker.phase in (Phase.READY, Phase.SENDING, Phase.ENDING)
        return is_open and kafka.ids[self._id].holder == self._number

    def of(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        """Everything that it may do in a state."""
        yield from self._faults(worker, kafka)
        yield from self._membership(worker, kafka)
        if act := self._phases.get(worker.phase):
            yield from act(worker, kafka)

    # -- faults and membership --------------------------------------------------------------------------

    def _faults(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        store = worker.store
        after = broker.let_go(kafka, self._id, self._number)
        dead = ModelWorker(Phase.IDLE, store=store)
        if worker != dead:
            yield Move("is killed", dead, after, is_fault=True)
        if store != ModelStore():
            yield Move(
                "is killed and loses its disk", dead._replace(store=ModelStore()), after, is_fault=True
            )
        for what, older in cut_short(store, kafka):
            label = f"loses power, and with it the last write of {what}"
            yield Move(label, dead._replace(store=older), after, is_fault=True)
        if worker.phase in (Phase.OPENING, Phase.READY, Phase.SENDING, Phase.ENDING):
            yield self._in_doubt(worker, kafka, after)

    def _in_doubt(self, worker: ModelWorker, kafka: Kafka, after: Kafka) -> Move:
        """An answer that does not come in time, or any other error."""
        if self._spec.reopens_after_doubt or worker.phase is not Phase.ENDING:
            label = "has an error or no answer: discards its producer, is to open again"
            return Move(label, worker.closed(Phase.OPENING), after, is_fault=True)
        label = "gets no answer: takes the transaction for aborted and goes on with the same producer"
        if kafka.ids[self._id].transaction is ModelTransaction.ONGOING:
            after = after.with_id(self._id, transaction=ModelTransaction.PREPARE_ABORT, ending=False)
        again = worker._replace(phase=Phase.READY, ends=None, batch=(), way=HandlingMode.APART)
        return Move(label, again, after, is_fault=True)

    def _membership(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        assigned = kafka.assigned == self._number
        if assigned and not worker.owner:
            phase = Phase.OPENING if worker.phase is Phase.IDLE else worker.phase
            yield Move("learns that the lane is its own", worker._replace(owner=True, phase=phase), kafka)
        in_commit = worker.phase in (Phase.SENDING, Phase.ENDING)
        if not assigned and worker.owner:
            left = worker._replace(owner=False) if in_commit else ModelWorker(store=worker.store)
            yield Move("learns that it has lost the lane", left, kafka)
        if not worker.owner and worker.phase is not Phase.IDLE:
            after = broker.let_go(kafka, self._id, self._number)
            label = "gives up the commit in flight and closes the lane" if in_commit else "closes the lane"
            yield Move(label, ModelWorker(store=worker.store), after)

    # -- opening ----------------------------------------------------------------------------------------

    def _follow(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        if self._spec.standby and not worker.owner:
            ends = (len(kafka.rows), len(kafka.marks))
            for what, store in copies(worker.store, kafka, ends):
                yield Move(f"follows as a standby, {what}", worker._replace(store=store), kafka)

    def _open(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        if worker.owner:
            step = self._spec.opening[worker.opened]
            if step is Opening.FENCE:
                yield from self._fence(worker, kafka)
            elif step is Opening.POSITIONS:
                placed = worker._replace(at=kafka.offset, read=kafka.read)
                yield self._next(placed, kafka, f"reads position {kafka.offset}")
            else:
                yield from self._recover(worker, kafka, to_stable=step is Opening.RECOVER_TO_STABLE)

    def _fence(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        initialised = broker.initialise(kafka, self._id, self._number)
        if initialised is None:
            return
        kafka, done = initialised
        if done:
            yield self._next(worker, kafka, "initialises its id: other producers of it are fenced")
        else:
            yield Move("initialises its id: the transaction left open is to be aborted", worker, kafka)

    def _recover(self, worker: ModelWorker, kafka: Kafka, *, to_stable: bool) -> Iterator[Move]:
        if worker.ends is None:
            logs = (kafka.rows, kafka.marks)
            rows, marks = (stable(log) if to_stable else len(log) for log in logs)
            which = "last stable offsets" if to_stable else "high watermarks"
            label = f"asks for the {which} of its changelogs, {rows} and {marks}"
            yield self._recovered(worker._replace(ends=(rows, marks)), kafka, label)
        elif _has_recovered(worker, kafka):
            yield self._recovered(worker, kafka, "passes over what was aborted")
        else:
            for what, store in copies(worker.store, kafka, worker.ends):
                yield self._recovered(worker._replace(store=store), kafka, f"recovers, {what}")

    def _recovered(self, worker: ModelWorker, kafka: Kafka, label: str) -> Move:
        if _has_recovered(worker, kafka):
            return self._next(worker._replace(ends=None), kafka, f"{label}: there is no more")
        return Move(label, worker, kafka)

    def _next(self, worker: ModelWorker, kafka: Kafka, label: str) -> Move:
        """The next step of opening; after the last, the positions are compared and the lane is open."""
        worker = worker._replace(opened=worker.opened + 1)
        if worker.opened < len(self._spec.opening):
            return Move(label, worker, kafka)
        store = worker.store
        disagreement = (worker.at, store.position)
        agree = (worker.at, worker.read) == (store.position, store.read)
        if agree or not self._spec.compares_positions:
            opened = ModelWorker(
                Phase.READY, worker.owner, store, at=worker.at, ahead=store.ahead, read=worker.read
            )
            return Move(f"{label}; the lane is open", opened, kafka)
        label = f"{label}; the changelog says {worker.store.position}"
        if self._spec.asks_again and worker.disagreed != disagreement:
            again = worker.closed(Phase.OPENING)._replace(disagreed=disagreement)
            return Move(f"{label}: is to open again", again, broker.let_go(kafka, self._id, self._number))
        stopped = worker.closed(Phase.STOPPED)._replace(disagreed=None)
        return Move(f"{label}: stops with PositionLost", stopped, kafka)

    # -- committing -------------------------------------------------------------------------------------

    def staged(self, worker: ModelWorker, batch: Ids) -> StagedTransaction:
        """What these messages do, over the store."""
        store = worker.store
        if worker.way is HandlingMode.READ_BACK:
            return StagedTransaction(
                batch, (*store.row, *batch), worker.at, worker.ahead, read=worker.read + 1
            )
        ids: Ids = ()
        for message in (self._spec.messages[place] for place in batch):
            if not self._spec.inbox or message not in (*store.inbox, *ids):
                ids = (*ids, message)
        position, ahead = _reached(worker, batch)
        sends = tuple(-message for message in ids) if self._spec.loops else ids
        if looped := worker.way is HandlingMode.LOOPED:
            ids = (*ids, *sends)
        noted = ahead if self._spec.notes_ahead else ()
        marked = looped and self._spec.marks_looped
        return StagedTransaction(ids, (*store.row, *ids), position, noted, sends, marked, worker.read)

    def _batches(self, worker: ModelWorker) -> Iterator[Ids]:
        """Which messages may be in a transaction: the next ones, or one that nothing of its key is before."""
        messages = self._spec.messages
        left = [place for place in range(worker.at, len(messages)) if place not in worker.ahead]
        for count in range(1, min(len(left), self._spec.max_batch) + 1):
            yield tuple(left[:count])
        if self._spec.overtakes:
            for number, place in enumerate(left[1:], start=1):
                if messages[place] not in {messages[before] for before in left[:number]}:
                    yield (place,)

    def _fenced(self, worker: ModelWorker, kafka: Kafka, doing: str) -> Move:
        after = broker.let_go(kafka, self._id, self._number)
        return Move(f"{doing}: is fenced, is to open again", worker.closed(Phase.OPENING), after)

    def _stage(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        each = kafka.ids[self._id]
        unread = kafka.outputs[worker.read : stable(kafka.outputs)] if self._spec.loops else ()
        if not worker.owner or (worker.at == len(self._spec.messages) and not unread):
            return
        if unread and unread[0].marked:
            label = "passes over what was handled when it was written"
            yield Move(label, worker._replace(read=worker.read + 1), kafka)
        elif each.holder != self._number:
            yield self._fenced(worker, kafka, "begins and sends")
        elif each.transaction is ModelTransaction.EMPTY:  # else the coordinator has it ask again
            ways = (HandlingMode.APART, HandlingMode.LOOPED) if self._spec.loops else (HandlingMode.APART,)
            chosen = [(batch, way) for batch in self._batches(worker) for way in ways]
            if unread:
                chosen.append((unread[0].ids, HandlingMode.READ_BACK))
            for batch, way in chosen:
                sending = worker._replace(phase=Phase.SENDING, batch=batch, way=way)
                label = f"stages {_SAID[way]} {batch[0]} to {batch[-1]}, begins and sends"
                yield Move(label, sending, broker.add(kafka, self._id, self.staged(sending, batch)))

    def _finish_sending(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        each = kafka.ids[self._id]
        if each.holder != self._number:
            yield self._fenced(worker, kafka, "sends")
            return
        staged = self.staged(worker, worker.batch)
        if self._spec.awaits_sends and each.written < len(staged.parts):
            return
        ends = (len(kafka.rows), len(kafka.marks))
        ending = worker._replace(phase=Phase.ENDING, ends=ends)
        label = "has all answers, sends EndTxn" if self._spec.awaits_sends else "sends EndTxn"
        if not self._spec.store_after_commit:
            ending = ending._replace(store=applied(worker.store, staged, ends))
            label = f"writes RocksDB, then {label}"
        yield Move(label, ending, broker.end(kafka, self._id))

    def _finish_commit(self, worker: ModelWorker, kafka: Kafka) -> Iterator[Move]:
        if self._number in kafka.answers:
            store = worker.store
            if self._spec.store_after_commit:
                assert worker.ends is not None
                store = applied(store, self.staged(worker, worker.batch), worker.ends)
            read_back = worker.way is HandlingMode.READ_BACK
            at, ahead = (worker.at, worker.ahead) if read_back else _reached(worker, worker.batch)
            read = worker.read + read_back
            ready = ModelWorker(Phase.READY, worker.owner, store, at=at, ahead=ahead, read=read)
            after = broker.let_go(kafka, self._id, self._number)
            yield Move("gets the answer to its commit, writes RocksDB", ready, after)
        elif kafka.ids[self._id].holder != self._number:
            yield self._fenced(worker, kafka, "commits")


_SAID = {
    HandlingMode.APART: "messages",
    HandlingMode.LOOPED: "with all that they send messages",
    HandlingMode.READ_BACK: "what it has sent itself:",
}


def _reached(worker: ModelWorker, batch: Ids) -> tuple[int, Ids]:
    """The position when these messages are handled, and what is handled above it."""
    handled, at = {*worker.ahead, *batch}, worker.at
    while at in handled:
        at += 1
    return at, tuple(sorted(place for place in handled if place > at))


def _has_recovered(worker: ModelWorker, kafka: Kafka) -> bool:
    """Whether both changelogs were read to their ends; over what was aborted meanwhile a reader passes."""
    assert worker.ends is not None
    rows, marks = min(worker.ends[0], len(kafka.rows)), min(worker.ends[1], len(kafka.marks))
    return worker.store.rows_at >= rows and worker.store.marks_at >= marks
