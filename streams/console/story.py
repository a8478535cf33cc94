"""The story of a key from its timeline: the outcome, the steps, and the step that decided. Pure.

A step is one handler with one message. It begins at the message's time and ends with the last message that it
sent or row that it changed, so it has the time in the queue in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from streams.console.formatting import seconds_text
from streams.console.step_texts import attempt_text, changed_texts, error_text, sent_text
from streams.control.base.refused import UNDECODABLE, refused
from streams.control.history.timeline_answers import RowChange, TimelineAnswer, TimelineEntry
from streams.model.envelope import epoch_seconds

AGAIN = ("retry", "dead letter")
_BAD_OUTCOMES = ("refused", "error", "timed_out")


@dataclass(slots=True, kw_only=True)
class StoryStep:
    """A handler with a message; without a handler, a message that was refused before any.

    Attributes:
        begin, end: milliseconds since the first message.
        state: done, bad, undo, retry or wait.
        decides: whether this step decided how it all ended.
        reason: why it refused or failed, where a message that it sent says so.
        again: its retries and its dead letter; `sent` its messages, `changes` of rows.
    """

    entry: TimelineEntry
    handler: str
    begin: int
    end: int
    state: str = "done"
    decides: bool = False
    reason: str = ""
    again: list[TimelineEntry] = field(default_factory=list)
    sent: list[TimelineEntry] = field(default_factory=list)
    changes: list[RowChange] = field(default_factory=list)

    @property
    def service(self) -> str:
        """The service of its handler."""
        return self.handler.partition(".")[0]

    @property
    def letter(self) -> TimelineEntry | None:
        """Its dead letter, if it has one."""
        return next((each for each in self.again if each.kind == "dead letter"), None)

    @property
    def refused(self) -> str:
        """Why no handler has seen the message, in words that follow it."""
        letter = self.letter
        return refused(letter.failure.get("error-type", UNDECODABLE) if letter is not None else UNDECODABLE)

    @property
    def summary(self) -> str:
        """The result of the step in one line."""
        if self.handler:
            tried = [attempt_text(number, each) for number, each in enumerate(self.again, 1)]
        else:
            tried = [error_text(each.failure) for each in self.again] or [self.entry.unreadable]
        tried += [self.reason] if self.reason else []
        done = [text for text in (*changed_texts(self.changes), sent_text(self.sent)) if text]
        return "; ".join([*tried, *done]) or ("waiting" if self.state == "wait" else "")


@dataclass(slots=True, kw_only=True)
class Story:
    """The heading of a page.

    Attributes:
        kind, word, sign: the status as a pill.
        heading: subject, state and cause in a sentence.
        why: what decided it, and when; `left`: what is left to do.
        others: messages that no handler of this application takes.
        loose: changes of rows that belong to no message here.
        ended: milliseconds from the first message to the last that is known.
    """

    kind: str
    word: str
    sign: str
    heading: str
    why: str
    left: str
    steps: list[StoryStep]
    others: list[TimelineEntry]
    loose: list[RowChange]
    ended: int


def story(answer: TimelineAnswer) -> Story:
    """The story that a timeline tells."""
    held = answer.held
    saga = held.sagas[0] if held is not None and held.sagas else None
    steps, others = _steps(answer)
    _mark(steps, answer, saga.reason if saga is not None else "")
    kind, word, sign, heading = _outcome(answer, steps)
    shown = {step.entry.number for step in steps} | {each.number for step in steps for each in step.again}
    return Story(
        kind=kind,
        word=word,
        sign=sign,
        heading=heading,
        why=_why(steps),
        left=_left(answer),
        steps=steps,
        others=[each for each in others if each.number not in shown],
        loose=answer.changes_by_step.get(0, []),
        ended=max([step.end for step in steps] + [each.after_ms for each in answer.entries], default=0),
    )


def _steps(answer: TimelineAnswer) -> tuple[list[StoryStep], list[TimelineEntry]]:
    """The steps in order of time, and the entries that are none."""
    caused: dict[int, list[TimelineEntry]] = {}
    for entry in answer.entries:
        caused.setdefault(entry.cause, []).append(entry)
    first = epoch_seconds(answer.entries[0].time) if answer.entries else None
    changes = answer.changes_by_step
    steps: list[StoryStep] = []
    for entry in answer.entries:
        if entry.kind in AGAIN and entry.cause:
            continue  # an attempt of the step that it was caused by
        after = caused.get(entry.number, [])
        again = [each for each in after if each.kind in AGAIN]
        made = _of_entry(entry, [entry, *again] if entry.kind in AGAIN else again)
        for each in after:
            if made and each.kind not in AGAIN:
                _owner(made, each.source.rpartition("/")[2]).sent.append(each)
        for change in changes.get(entry.number, []):
            if made:
                next((step for step in made if step.handler in change.handlers), made[0]).changes.append(
                    change
                )
        for step in made:
            ends = [each.after_ms for each in (*step.sent, *step.again)]
            times = (epoch_seconds(each.time) for each in step.changes)
            ends += [round(1000 * (time - first)) for time in times if time is not None and first is not None]
            step.end = max([step.begin, *ends])
        steps += made
    return steps, [each for each in answer.entries if not each.handlers or each.kind in AGAIN]


def _of_entry(entry: TimelineEntry, again: Sequence[TimelineEntry]) -> list[StoryStep]:
    """The steps of a message: one for each of its handlers, or one without, where none has seen it."""
    unseen = any(each.kind == "dead letter" and not each.handlers for each in again)
    names = (
        [""] if unseen else list(dict.fromkeys([*entry.handlers, *(n for e in again for n in e.handlers)]))
    )
    return [
        StoryStep(
            entry=entry,
            handler=name,
            begin=entry.after_ms,
            end=entry.after_ms,
            again=[each for each in again if not name or name in each.handlers],
        )
        for name in names
    ]


def _owner(steps: Sequence[StoryStep], service: str) -> StoryStep:
    return next((step for step in steps if step.service == service), steps[0])


def _mark(steps: Sequence[StoryStep], answer: TimelineAnswer, reason: str) -> None:
    """Set the states of the steps, and which one decided. All that begins later is its undo, where there is a
    reason: what was done before is undone then.
    """
    waits = {(each.handler, each.id) for each in (answer.held.waiting if answer.held is not None else [])}
    for step in steps:
        step.reason = next(filter(None, map(_failure, step.sent)), "")
        if step.letter is not None or step.reason:
            step.state = "bad"
        elif (step.handler, step.entry.id) in waits:
            step.state = "wait"
        elif step.again:
            step.state = "retry"
    decided = _decision(steps, reason)
    if decided is None:
        return
    decided.decides = True
    if reason:
        decided.state, decided.reason = "bad", decided.reason or f"refused: {reason}"
        for step in steps:
            if (
                step.begin >= decided.end
                and step.entry.number > decided.entry.number
                and step.state == "done"
            ):
                step.state = "undo"


def _failure(sent: TimelineEntry) -> str:
    """Text of a reply for a step of a saga that was not done."""
    value = sent.value if isinstance(sent.value, dict) else {}
    bad = value.get("outcome") in _BAD_OUTCOMES
    return f"{str(value['outcome']).replace('_', ' ')}: {value.get('reason', '')}" if bad else ""


def _decision(steps: Sequence[StoryStep], reason: str) -> StoryStep | None:
    """The step that sent the first message with the saga's reason; else the one that failed for good."""
    if reason:
        for step in steps:
            if any(_has(each.value, reason) for each in step.sent if each.kind != "transition"):
                return step
    failed = [step for step in steps if step.letter is not None]
    return next(iter(failed or [step for step in steps if step.again]), None)


def _has(value: Any, text: str) -> bool:
    if isinstance(value, dict):
        return any(_has(each, text) for each in value.values())
    if isinstance(value, list):
        return any(_has(each, text) for each in value)
    return bool(value == text)


# -- in words ---------------------------------------------------------------------------------------------


def _outcome(answer: TimelineAnswer, steps: Sequence[StoryStep]) -> tuple[str, str, str, str]:
    """The status as a pill (kind, word, icon), and the heading."""
    name, held = answer.asked, answer.held
    if held is None:
        return "late", "Owner does not answer", "", f"{name}: the owner of this key does not answer"
    for saga in held.sagas:
        if saga.status == "failed":
            what = saga.undecided or "a step failed for good"
            return "stop", "Needs a decision", "", f"{name} needs a decision: {what}"
    if held.letters:
        letter = held.letters[0]
        types = (step.entry.type for step in steps if step.entry.topic == letter.topic)
        what = next(types, letter.message_type)
        if not letter.handler:
            heading = f"{name} is stopped: {what} {refused(letter.error_type)}; no handler has seen it"
        else:
            heading = f"{name} is stopped: {letter.handler} gave up on {what}"
        return "stop", "Needs a decision", "", heading
    if held.waiting:
        first = held.waiting[0]
        return "late", "Waiting", "", f"{name} waits for {first.handler}: {first.why}"
    for saga in held.sagas:
        return _of_saga(name, saga.status, saga.reason, stalled=saga.stalled)
    if any(step.state == "bad" for step in steps):
        return "late", "Failed earlier", "warn", f"{name}: nothing is left to do; a step failed earlier"
    if steps:
        return "ok", "Nothing left to do", "", f"{name}: nothing is waiting, nothing failed"
    if not answer.entries:
        return "", "Nothing found", "", f"{name}: no such key, saga, message or correlation id"
    return "", "Found", "", f"{name}: messages"


def _of_saga(name: str, status: str, reason: str, *, stalled: bool) -> tuple[str, str, str, str]:
    because = f": {reason}" if reason else ""
    match status:
        case "completed":
            return "ok", "Completed", "", f"{name} is complete"
        case "compensated":
            return "late", "Cancelled and fully compensated", "undo", f"{name} was cancelled{because}"
        case "compensating":
            return "late", "Compensating", "undo", f"{name} is being compensated{because}"
        case "unreadable":
            return "stop", "Cannot be read", "", f"{name}: its saga cannot be read{because}"
    if stalled:
        return "late", "Overdue", "", f"{name} is overdue: it should have ended by now"
    return "run", "Running", "", f"{name} is running"


def _why(steps: Sequence[StoryStep]) -> str:
    decided = next((step for step in steps if step.decides), None)
    if decided is None:
        return ""
    at, who = seconds_text(decided.end / 1000), decided.handler
    letter = decided.letter
    if letter is not None and not who:
        return f"{decided.entry.type} was refused before any handler: {error_text(letter.failure)}"
    if letter is not None:
        return f"{who} failed for good after {at}: {error_text(letter.failure)}"
    if decided.state == "bad":
        then = [step for step in steps if step.state == "bad" and step is not decided]
        more = f". Then {then[-1].handler} failed, {then[-1].reason}" if then and then[-1].reason else ""
        return f"{who} refused {decided.entry.type} after {at}{more}"
    return f"{who} needed {len(decided.again) + 1} attempts"


def _left(answer: TimelineAnswer) -> str:
    held = answer.held
    if held is None:
        return f"What the owner has for this key is not known: {answer.missing}."
    left = [f"{len(held.letters)} dead letter{'' if len(held.letters) == 1 else 's'}"] if held.letters else []
    left += [f"{sum(each.messages for each in held.waiting)} waiting"] if held.waiting else []
    left += [f"{len(held.timers)} timer{'' if len(held.timers) == 1 else 's'}"] if held.timers else []
    if left:
        return f"Remaining: {', '.join(left)}."
    if any(saga.status == "failed" for saga in held.sagas):
        return "Its saga waits for your decision."
    return "Nothing is waiting: no retries, timers or dead letters."
