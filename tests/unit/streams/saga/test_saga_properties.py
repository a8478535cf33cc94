"""Whatever becomes of its messages, a saga ends once, and all it did stays or all of it is undone.

Random definitions run over participants whose work is in rows or outside. Messages come in any order,
again, never, or by an owner that crashes before its commit; participants refuse, fail before and after their
work, and answer late; operators have steps made again, and call sagas off. Messages of participants in the
same application are never lost, but as late as can be; a question comes behind what it asks after, which a
pause may hold up there. The model is what was really done and undone.
"""

from __future__ import annotations

from collections import Counter
from types import CoroutineType
from typing import Any, ClassVar, NamedTuple

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from travel import JourneyRepair, JourneyReply, JourneyTransition, JourneyWanted

from streams.errors import PermanentError, TransientError
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, Timer
from streams.model.table import Table
from streams.saga import repairs
from streams.saga.definition import Backoff, Refusal, Saga, Step, saga, step
from streams.saga.engine import orchestrate
from streams.saga.messages import Command, RepairOperation
from streams.saga.participant import Answer, Participant, done, refused
from streams.saga.participation import Participation
from streams.saga.state import SagaRow
from streams.testing.clock import ManualClock
from tests.effort import examples

SERVICE = Service("work")
SAGAS = Table("sagas", SagaRow)


class Worked(Row, frozen=True, kw_only=True):
    """Steps whose work is in rows."""

    steps: tuple[str, ...] = ()


class WorkCommand(Command, frozen=True, kw_only=True):
    REPLY = JourneyReply


class DoHere(WorkCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "here.commands.do"


class UndoHere(WorkCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "here.commands.undo"


class DoOutside(WorkCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "outside.commands.do"


class UndoOutside(WorkCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "outside.commands.undo"


class Completed(Message, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "work.completed.v1"
    journey: str


class Compensated(Message, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "work.compensated.v1"
    journey: str
    reason: str


class Effects:
    """What was really done, in order, and how the next piece of work goes."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.how = "done"

    def standing(self, name: str) -> bool:
        return self.log.count(("do", name)) > self.log.count(("undo", name))


here = Participant(SERVICE, Table("here-steps", Participation))
outside = Participant(SERVICE, Table("outside-steps", Participation))
WORKED = Table("worked", Worked)


def _fail(how: str) -> None:
    if how == "fail":
        raise TransientError("not now")
    if how == "break":
        raise PermanentError("never")


@here.command(worked=WORKED)
def do_here(command: DoHere, worked: Worked | None, *, effects: Effects) -> Answer:
    _fail(effects.how)
    if effects.how == "refuse":
        return refused("no")
    return done(worked=Worked(steps=(*(worked or Worked()).steps, command.step)))


@here.compensation(worked=WORKED)
def undo_here(command: UndoHere, worked: Worked | None, *, effects: Effects) -> Answer:
    _fail(effects.how)
    assert command.step in worked.steps, "asked to undo what was not done"
    return done(worked=Worked(steps=tuple(name for name in worked.steps if name != command.step)))


@outside.command()
async def do_outside(command: DoOutside, *, effects: Effects) -> Answer:
    _fail(effects.how)
    if ("do", command.step) not in effects.log:  # an operation is done once under its name, undone or not
        if effects.how == "refuse":
            return refused("no")
        effects.log.append(("do", command.step))
    if effects.how == "fail_after":
        raise TransientError("the answer was lost")
    if effects.how == "break_after":
        raise PermanentError("never, although it is done")
    return done()


@outside.compensation()
async def undo_outside(command: UndoOutside, *, effects: Effects) -> Answer:
    _fail(effects.how)
    if effects.standing(command.step):
        effects.log.append(("undo", command.step))
    if effects.how == "fail_after":
        raise TransientError("the answer was lost")
    return done()


HANDLERS: dict[type[Message], Any] = {
    DoHere: do_here,
    UndoHere: undo_here,
    DoOutside: do_outside,
    UndoOutside: undo_outside,
}
HOW = st.sampled_from(
    ["done", "done", "done", "done", "refuse", "refuse", "fail", "fail_after", "break", "break_after"]
)


class Spec(NamedTuple):
    """A step to be drawn into a definition."""

    kind: str
    retries: int
    applies: bool


SPECS = st.builds(
    Spec,
    st.sampled_from(["here", "outside", "outside"]),
    st.integers(0, 1),
    st.sampled_from([True, True, False]),
)


def made(name: str, spec: Spec, *, undone: bool) -> Step:
    do: type[Command] = DoHere if spec.kind == "here" else DoOutside
    undo: type[Command] = UndoHere if spec.kind == "here" else UndoOutside
    options: dict[str, Any] = {"compensate": undo} if undone else {}
    if not spec.applies:
        options["when"] = lambda _: False
    return step(
        name,
        do,
        timeout=10,
        retry=Backoff(times=spec.retries, delay=3),
        retry_compensation=Backoff(times=2, delay=3),
        **options,
    )


@st.composite
def definitions(draw: st.DrawFn) -> Saga:
    """One to four stages, single or in groups; with a pivot anywhere or without."""
    stages = draw(st.lists(st.lists(SPECS, min_size=1, max_size=3), min_size=1, max_size=4))
    pivot = draw(st.integers(0, len(stages)))
    definition = saga("work", started_by=JourneyWanted)
    if draw(st.booleans()):
        definition = definition.local("look", lambda _: None)
    for number, specs in enumerate(stages):
        if number == pivot:
            undone = draw(st.booleans())
            one = made("pivot", specs[0], undone=undone)
            options: dict[str, Any] = {"compensate": one.compensate} if undone else {}
            definition = definition.pivot(
                "pivot", one.command, timeout=10, retry=one.retry or Backoff(), **options
            )
        else:
            steps = [made(f"s{number}{i}", spec, undone=number < pivot) for i, spec in enumerate(specs)]
            definition = definition.together(*steps)
    if pivot >= len(stages) and draw(st.booleans()):
        definition = definition.local("decide", lambda _: Refusal("changed its mind"))
    return definition.ends(completed=Completed, compensated=Compensated)


def finished(work: Any) -> Any:
    """What a handler returns; ours never really wait."""
    if not isinstance(work, CoroutineType):
        return work
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class World(RuleBasedStateMachine):
    """One saga and its participants, over a network that a test rules."""

    definition: Saga
    saga: Any

    @initialize(definition=definitions(), ours=st.sets(st.sampled_from([DoHere, DoOutside])))
    def begin(self, definition: Saga, ours: set[type[Command]]) -> None:
        undo: dict[type[Command], type[Command]] = {DoHere: UndoHere, DoOutside: UndoOutside}
        self.ours = frozenset(kind.TOPIC for do in ours for kind in (do, undo[do]))
        #: Commands that their participants have read, and those of which a try has failed.
        self.read: set[str] = set()
        self.failed: set[str] = set()
        self.clock = ManualClock(1000.0)
        self.effects = Effects()
        self.definition = definition
        self.handler = orchestrate(
            definition, service=SERVICE, table=SAGAS, log=JourneyTransition, repairs=JourneyRepair
        )
        self.rows: dict[tuple[str, str], Row] = {}
        self.flight: list[Message] = []
        self.timers: dict[str, Timer] = {}
        self.sent: list[Message] = []
        self.faults: Counter[str] = Counter()
        self.called_off = False
        self.flight.append(JourneyWanted(journey="j-1", cents=1))
        self._deliver(0)

    @property
    def row(self) -> SagaRow:
        return self.rows["sagas", ""]

    # -- what happens -----------------------------------------------------------------------------------

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), how=HOW, again=st.booleans())
    def arrives(self, data: st.DataObject, how: str, again: bool) -> None:
        """A message arrives, perhaps not the oldest, perhaps again later."""
        number = data.draw(st.integers(0, len(self.flight) - 1))
        message = self.flight[number]
        if self._is_behind(message):
            return
        if self._is_tried_again(message) and not data.draw(st.booleans(), label="paused"):
            self.flight.pop(number)  # it is not heard of while the one before is tried again
            return
        if again:
            self.flight.append(message)
            self.faults["again"] += 1
        self._deliver(number, how)

    @precondition(lambda self: any(isinstance(each, Command) for each in self.flight))
    @rule(data=st.data())
    def is_held_up(self, data: st.DataObject) -> None:
        """A participant reads a command, and may not begin it, for an operator has paused it; perhaps until
        its saga has asked after it.
        """
        commands = [each for each in self.flight if isinstance(each, Command) and not self._is_behind(each)]
        if not commands:
            return
        held = data.draw(st.sampled_from(commands)).command_id
        self.read.add(held)
        if data.draw(st.booleans(), label="past its deadline"):
            self.time_passes(11)
            for kind in (JourneyReply, Command):  # the deadline, then the question
                for each in [each for each in self.flight if isinstance(each, kind)]:
                    if each.command_id == held and getattr(each, "asks", True):
                        self._deliver(self.flight.index(each))

    def _is_behind(self, message: Message) -> bool:
        """Whether it lies in its topic behind what was not read yet."""
        return isinstance(message, Command) and message.asks and message.command_id not in self.read

    def _is_tried_again(self, message: Message) -> bool:
        """Whether it asks after a command that is tried again."""
        if not (isinstance(message, Command) and message.asks):
            return False
        ids = {each.command_id for each in self.flight if isinstance(each, Command) and not each.asks}
        return message.command_id in ids & self.failed

    def _is_ours(self, message: Message) -> bool:
        if isinstance(message, Command):
            return message.TOPIC in self.ours
        one = self.definition.find(message.step) if isinstance(message, JourneyReply) else None
        return one is not None and one.command is not None and one.command.TOPIC in self.ours

    @precondition(lambda self: self.flight)
    @rule(data=st.data())
    def is_lost(self, data: st.DataObject) -> None:
        """A message never arrives. Not so the saga's own, nor those of participants of its application."""
        number = data.draw(st.integers(0, len(self.flight) - 1))
        message = self.flight[number]
        own = isinstance(message, JourneyReply) and message.outcome in ("due", "timed_out")
        if not (own or self._is_ours(message)):
            self.flight.pop(number)
            self.faults["lost"] += 1

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), how=HOW)
    def crashes(self, data: st.DataObject, how: str) -> None:
        """An owner handles a message and ends before its commit: it arrives once more."""
        message = data.draw(st.sampled_from(self.flight))
        if not self._is_behind(message):
            self._run(message, how)
            self.faults["crash"] += 1

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def time_passes(self, seconds: int) -> None:
        """What comes due is under way."""
        self.clock.set(self.clock.now() + seconds)
        for timer in sorted(self.timers.values(), key=lambda each: each.due):
            if timer.due <= self.clock.now():
                del self.timers[timer.name]
                self.flight.append(timer.message)

    @precondition(lambda self: self.row.status == "failed")
    @rule(data=st.data())
    def is_retried(self, data: st.DataObject) -> None:
        """An operator asks for a failed step to be made again."""
        name = data.draw(st.sampled_from([each.name for each in repairs.awaiting_operator(self.row)]))
        self._ask("retry", name)

    @precondition(lambda self: not self.row.ended and not self.faults["to call off"])
    @rule()
    def is_called_off(self) -> None:
        """An operator asks, once, for it to be called off."""
        self._ask("cancel", "")
        self.faults["to call off"] += 1

    def _ask(self, operation: RepairOperation, step: str) -> None:
        asked = JourneyRepair(
            saga_id=self.row.saga_id, operation=operation, step=step, who="ann", why="she rang"
        )
        self.flight.append(asked)

    def _may_be_called_off(self) -> bool:
        """Nothing has been done that nobody can undo, or may have been."""
        final = [one for one in self.definition.steps() if one.pivot and one.compensate is None]
        statuses = {self.row.step(one.name).status for one in final}
        return self.row.status == "started" and "in_progress" not in statuses

    def _stuck(self, name: str) -> bool:
        state = self.row.step(name)
        one = self.definition.find(name)
        return state.undoing or one.forward_only or one.pivot

    # -- what is always so ------------------------------------------------------------------------------

    @invariant()
    def is_done_and_undone_once(self) -> None:
        counts = Counter(self.effects.log)
        assert max(counts.values(), default=0) <= 1
        for position, (what, name) in enumerate(self.effects.log):
            assert what == "do" or ("do", name) in self.effects.log[:position]

    @invariant()
    def is_not_given_up_unheard(self) -> None:
        """No silence of a participant of ours ends a step here: none lasts for about a day."""
        for one in self.definition.steps():
            state = self.row.step(one.name)
            if one.command is not None and one.command.TOPIC in self.ours:
                assert not (state.status == "failed" and state.error.startswith("timed_out"))

    @invariant()
    def ends_once(self) -> None:
        ends = [type(each) for each in self.sent if isinstance(each, Completed | Compensated)]
        expected: dict[str, list[type[Message]]] = {"completed": [Completed], "compensated": [Compensated]}
        assert ends == expected.get(self.row.status, [])

    @invariant()
    def stands_or_is_undone_as_soon_as_it_ends(self) -> None:
        standing = {each.name for each in self.definition.steps() if self.effects.standing(each.name)}
        if self.row.status == "compensated":
            assert not standing
        if self.called_off:
            assert self.row.status in ("compensating", "compensated", "failed")
        if self.row.status == "completed":
            asked = [each for each in self.definition.steps() if each.when is None and each.command]
            assert standing == {each.name for each in asked}
            assert not [name for what, name in self.effects.log if what == "undo"]

    def teardown(self) -> None:
        if not hasattr(self, "flight"):
            return
        while self.flight or self.timers:
            if self.flight:
                self._deliver(next(n for n, each in enumerate(self.flight) if not self._is_behind(each)))
            else:
                self.time_passes(1)
        status = self.row.status
        event(status)
        for fault in self.faults:
            event(fault)
        assert status in ("completed", "compensated", "failed"), self.row
        if status == "failed":
            assert all(self._stuck(each.name) for each in repairs.awaiting_operator(self.row))
        self.stands_or_is_undone_as_soon_as_it_ends()
        stage_of = {one.name: n for n, stage in enumerate(self.definition.stages) for one in stage}
        undone = [stage_of[name] for what, name in self.effects.log if what == "undo"]
        assert undone == sorted(undone, reverse=True)

    # -- the lane's part --------------------------------------------------------------------------------

    def _deliver(self, number: int, how: str = "done") -> None:
        message = self.flight.pop(number)
        may_go_back = bool(self.sent) and self._may_be_called_off()
        made = self._run(message, how)
        if isinstance(message, Command):
            self.read.add(message.command_id)
            if message.asks:
                self.faults["asked after"] += 1
        if made is None:
            assert isinstance(message, Command)
            self.failed.add(message.command_id)
            self.flight.append(message)  # the lane tries it again
            return
        self._commit(HANDLERS.get(type(message), self.handler), made, message)
        if isinstance(message, JourneyRepair):
            self._check_repaired(message, may_go_back)

    def _check_repaired(self, repair: JourneyRepair, may_go_back: bool) -> None:
        refused = self.row.log[-1].detail.startswith(repairs.refusal(repair.operation))
        self.faults[f"{repair.operation}{' refused' if refused else ''}"] += 1
        if repair.operation == "cancel":
            assert refused is not may_go_back
            self.called_off |= not refused

    def _run(self, message: Message, how: str) -> Outcome | None:
        handler = HANDLERS.get(type(message), self.handler)
        rows = [self.rows.get(_key(row, message)) for row in handler.rows.values()]
        resources = {"clock": self.clock, "effects": self.effects, "consumed": self.ours}
        self.effects.how = how
        try:
            outcome: Outcome = finished(
                handler(message, *rows, **{name: resources[name] for name in handler.resources})
            )
        except TransientError:
            self.faults[how] += 1
            return None
        except PermanentError as error:
            self.faults[how] += 1
            given_up: Outcome = handler.on_give_up(message, error)
            return given_up
        return outcome

    def _commit(self, handler: Any, outcome: Outcome, message: Any) -> None:
        for name, row in outcome.rows.items():
            assert row is not None
            if isinstance(row, Worked):
                had = self.rows.get(_key(handler.rows[name], message))
                before, after = Counter(had.steps if isinstance(had, Worked) else ()), Counter(row.steps)
                self.effects.log += [("do", one) for one in (after - before).elements()]
                self.effects.log += [("undo", one) for one in (before - after).elements()]
            self.rows[_key(handler.rows[name], message)] = row
        for name in outcome.cancel:
            self.timers.pop(name, None)
        self.timers |= {timer.name: timer for timer in outcome.timers}
        self.sent += outcome.send
        self.flight += [each for each in outcome.send if isinstance(each, Command | JourneyReply)]


def _key(row: Any, message: Any) -> tuple[str, str]:
    return row.table.name, row.subkey(message) if row.subkey else ""


def test_every_saga_ends_once_with_all_done_or_undone() -> None:
    run_state_machine_as_test(World, settings=settings(max_examples=examples(200), stateful_step_count=40))
