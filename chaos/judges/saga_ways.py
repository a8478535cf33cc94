"""The way of every saga, expected a second time from the commands and replies in the topics: pure.

How a saga has to go follows from the replies that it took: of those to a command, its participant's first.
The saga's own deadlines only make it ask: once after each that rings before there is a reply.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from chaos.evidence.saga_records import STEPS, CommandRecord, Replied, SagaMessages, StepRecord

#: Replies by which a command is late, and may have been done all the same.
UNCERTAIN = frozenset({"expired", "error"})
#: That by which it was not begun in time and never will be.
NOT_BEGUN = "cancelled"
LATE = UNCERTAIN | {NOT_BEGUN}
#: Why an order is cancelled for that, in its saga's words.
TIMED_OUT = "timed_out"
#: The saga's own.
DUE = "due"
TIMERS = frozenset({DUE, "timed_out"})
_NAMES = {kind.TOPIC: kind.__name__ for step in STEPS for kind in (step.do, step.undo)}
by_time = attrgetter("time")


class Went(NamedTuple):
    """How a step went: the reply taken to its command, `""` while there is none, and those to each command
    that undoes it.
    """

    step: StepRecord
    reply: str
    undone: tuple[str, ...]

    @property
    def status(self) -> str:
        """Of the step."""
        if self.undone:
            return "compensated"
        return "completed" if self.reply == "success" else "failed"

    @property
    def participant(self) -> str:
        """The status of its participant's row."""
        if self.undone:
            return "undone"
        return {"success": "done", NOT_BEGUN: "cancelled"}.get(self.reply, "refused")


class Late(NamedTuple):
    """A command that was late: how, when it was decided on, and when its lateness was; in seconds since the
    epoch.
    """

    command_id: str
    what: str
    decided: float
    late_at: float


@dataclass(frozen=True)
class SagaPath:
    """A saga's way, as commands and replies tell it.

    Attributes:
        went: the steps that were begun, in order.
        late: commands that were late.
        wrong: what is wrong with it by itself.
    """

    went: tuple[Went, ...]
    late: tuple[Late, ...]
    wrong: tuple[str, ...]

    @property
    def completed(self) -> bool:
        """Whether every step succeeded."""
        return [each.reply for each in self.went] == ["success"] * len(STEPS)

    @property
    def given_up(self) -> str:
        """How the command was late for which the saga went back, as its order is settled; empty: for none."""
        last = self.went[-1].reply if self.went else ""
        return TIMED_OUT if last == NOT_BEGUN else last if last in LATE else ""

    def tells(self) -> list[tuple[str, str]]:
        """What it has to tell: each change of a step's status, and of its own."""
        expected = [("", "started")]
        for each in self.went:
            expected.append((each.step.name, "in_progress"))
            if each.reply:
                expected.append((each.step.name, "completed" if each.reply == "success" else "failed"))
        if self.completed:
            return [*expected, ("", "completing"), ("", "completed")]
        expected.append(("", "compensating"))
        for each in reversed(self.went):
            if each.undone:
                expected += [(each.step.name, "compensating"), (each.step.name, "compensated")]
        return [*expected, ("", "compensated")]


def taken(saga: SagaMessages) -> dict[str, Replied]:
    """The reply to each command that its saga has gone by: its participant's first."""
    first: dict[str, Replied] = {}
    for each in sorted(saga.replies, key=lambda each: each.sent.offset):
        if each.outcome not in TIMERS:
            first.setdefault(each.command_id, each)
    return first


def way_of(saga: SagaMessages) -> SagaPath:
    """How a saga went."""
    replies = taken(saga)
    by_topic: dict[str, list[CommandRecord]] = defaultdict(list)
    for each in sorted(saga.commands, key=by_time):
        by_topic[each.sent.topic].append(each)
    went, wrong = [], list(_out_of_place(saga))
    late: list[Late] = []
    going = True

    def outcome_of(each: CommandRecord) -> str:
        reply = replies.get(each.command_id)
        if reply is not None and reply.outcome in LATE:
            name = _NAMES[each.sent.topic]
            late.append(Late(each.command_id, f"{reply.outcome} of {name}", each.decided, reply.decided))
        return reply.outcome if reply is not None else ""

    for step in STEPS:
        commands = by_topic[step.do.TOPIC]
        outcomes = [outcome_of(each) for each in commands]
        undone = tuple(outcome_of(each) for each in by_topic[step.undo.TOPIC])
        if not (going and outcomes):
            going = False
            wrong += [f"{step.name} was commanded" for _ in outcomes]
            wrong += [f"{step.name} was undone" for _ in undone]
            continue
        if len(outcomes) > 1:
            wrong.append(f"{step.name} was commanded {len(outcomes)} times")
        going = outcomes[0] == "success"
        went.append(Went(step, outcomes[0], undone))
    return SagaPath(tuple(went), tuple(late), (*wrong, *_not_undone(went)))


def _out_of_place(saga: SagaMessages) -> Iterator[str]:
    known = Counter(each.command_id for each in saga.commands)
    questions = Counter(each.command_id for each in saga.questions)
    answers = Counter(each.command_id for each in saga.replies if each.outcome not in TIMERS)
    yield from (
        f"{command_id} was answered {count} times"
        for command_id, count in answers.items()
        if count > 1 + questions[command_id]
    )
    done = Counter(each.command_id for each in saga.replies if each.outcome == "success")
    yield from (f"{command_id} was done {count} times" for command_id, count in done.items() if count > 1)
    yield from (
        f"{command_id} was commanded {count} times" for command_id, count in known.items() if count > 1
    )
    replied = {each.command_id for each in saga.replies}
    yield from (f"{command_id} has a reply and no command" for command_id in sorted(replied - known.keys()))
    listened = {command_id: len(those) for command_id, those in heeded(saga).items()}
    yield from (
        f"{command_id} has {questions[command_id]} questions"
        for command_id in sorted(questions.keys() | listened.keys())
        if questions[command_id] != listened.get(command_id, 0)
    )


def heeded(saga: SagaMessages) -> dict[str, list[Replied]]:
    """The deadlines of each command that came before a reply to it."""
    replies = taken(saga)
    found: dict[str, list[Replied]] = defaultdict(list)
    for each in saga.replies:
        reply = replies.get(each.command_id)
        if each.outcome == "timed_out" and (reply is None or each.sent.offset < reply.sent.offset):
            found[each.command_id].append(each)
    return found


def _not_undone(went: Sequence[Went]) -> Iterator[str]:
    """What was done, or may have been, of a saga that did not complete is undone, and nothing else."""
    completed = len(went) == len(STEPS) and went[-1].reply == "success"
    for each in went:
        name = each.step.name
        if not each.reply:
            yield f"{name} has no reply"
        elif completed or not (each.reply == "success" or each.reply in UNCERTAIN):
            if each.undone:
                yield f"{name} was undone and had not to be"
        elif not each.undone:
            yield f"{name} was not undone"
        elif each.undone[-1] != "success":
            yield f"{name} is not undone: {each.undone[-1] or 'no reply'}"
        elif early := [reply for reply in each.undone[:-1] if reply not in LATE]:
            yield f"{name} was undone again after {early[0]}"
    if len(went) < len(STEPS) and (not went or went[-1].reply == "success"):
        yield "it has not ended"


def given_up(by_order: Mapping[str, SagaMessages]) -> set[str]:
    """Orders that were cancelled because a step was late."""
    return {order_id for order_id, saga in by_order.items() if way_of(saga).given_up}
