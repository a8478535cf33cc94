"""Where the time of a story or a saga went: a lane for each service, a track for each handler or step, gaps
folded. Pure.

Places are per cent of the width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from streams.console.formatting import seconds_text
from streams.console.story import Story, StoryStep
from streams.control.sagas.saga_answers import SagaShown, StepAnswer
from streams.model.envelope import epoch_seconds

#: Part of the whole time from which on a gap is folded, and the room that it takes then.
_LONG, FOLDED = 0.4, 11.0
#: Room of all, of the shortest bar, and between two texts of the axis.
_ROOM, _LEAST, _APART = 97.0, 0.8, 8.0
_TICKS = 7
#: An attempt of a saga's step failed, in its log, and the seconds until the next one.
_AGAIN = re.compile(r"; again in (\S+) s$")


class Bar(NamedTuple):
    """A bar, and the step that it leads to."""

    number: int
    kind: str
    x: float
    width: float
    y: int
    height: int
    title: str


class Mark(NamedTuple):
    """A text on the axis; `fold` has the width of a gap that is folded there."""

    x: float
    text: str
    fold: float = 0.0


class Track(NamedTuple):
    """The bars of a handler."""

    handler: str
    took: str
    bars: list[Bar]


class Lane(NamedTuple):
    """The tracks of a service."""

    service: str
    tracks: list[Track]


class Swimlanes(NamedTuple):
    """All of it."""

    marks: list[Mark]
    lanes: list[Lane]
    span: str

    @property
    def kinds(self) -> set[str]:
        """The kinds of bars that it has, for its legend."""
        return {bar.kind for lane in self.lanes for track in lane.tracks for bar in track.bars}


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of a step: what its bar leads to, milliseconds, kind of bar, title."""

    number: int
    begin: int
    end: int
    kind: str
    title: str


def swimlanes(story: Story) -> Swimlanes:
    """The picture of a story's steps."""
    tracks: dict[tuple[str, str], list[StoryStep]] = {}
    for step in story.steps:
        if step.handler:
            tracks.setdefault((step.service, step.handler.partition(".")[2]), []).append(step)
    return _drawn(
        [
            (service, name, _took(steps), [_spans(step) for step in steps])
            for (service, name), steps in tracks.items()
        ]
    )


def saga_lanes(shown: SagaShown) -> Swimlanes:
    """The picture of a saga's steps: what was done and undone, and the waits between attempts."""
    tracks = []
    for step in shown.steps:
        if spans := _step_spans(shown, step):
            service, _, action = step.action.partition(".")
            name = action if step.name == step.action else step.name
            ran, waited = (_total(spans, waits=waits) for waits in (False, True))
            took = seconds_text(ran / 1000) if ran else "<1 ms"
            took += f", {step.attempts} attempts" if step.attempts > 1 else ""
            took += f", waited {seconds_text(waited / 1000)}" if waited else ""
            tracks.append((service, name, took, [spans]))
    return _drawn(tracks)


def _total(spans: Iterable[_Span], *, waits: bool) -> int:
    """Milliseconds of the spans in which a step waits, or in which it runs."""
    return sum(each.end - each.begin for each in spans if (each.kind == "wait") is waits)


def _drawn(tracks: Sequence[tuple[str, str, str, list[list[_Span]]]]) -> Swimlanes:
    """Tracks by service, name and text, drawn to one scale."""
    spans = [each for *_, rows in tracks for row in rows for each in row]
    total = max((each.end for each in spans), default=0)
    folds = _gaps([each for each in spans if each.kind != "wait"], total)
    place = _placing(total, folds)
    lanes: dict[str, list[Track]] = {}
    for service, name, took, rows in tracks:
        lanes.setdefault(service, []).append(Track(name, took, _bars(rows, place)))
    return Swimlanes(
        marks=_marks(total, folds, place),
        lanes=[Lane(service, found) for service, found in lanes.items()],
        span=seconds_text(total / 1000),
    )


def _spans(step: StoryStep) -> list[_Span]:
    """A step as spans: each attempt that failed, the wait until the next one, and the last attempt."""
    kinds = {"done": "", "retry": "", "wait": "wait"}
    took, begin, number = f"{step.handler} took {step.entry.type}", step.begin, step.entry.number
    spans = []
    for tried, again in enumerate(step.again, 1):
        spans.append(_Span(number, begin, again.after_ms, "bad", f"{took}, attempt {tried} failed"))
        due, at = epoch_seconds(again.failure.get("due", "")), epoch_seconds(again.time)
        begin = again.after_ms
        if due is not None and at is not None and due > at:
            begin = min(again.after_ms + round(1000 * (due - at)), max(step.end, again.after_ms))
            spans.append(_Span(number, again.after_ms, begin, "wait", "waits for a retry"))
    if step.letter is None:
        kind = kinds.get(step.state, step.state)
        spans.append(_Span(number, begin, max(begin, step.end), kind, f"{took}: {step.summary}"))
    return spans


def _step_spans(shown: SagaShown, step: StepAnswer) -> list[_Span]:
    """A saga's step as spans, from the log; of a choreographed saga, each event since the one before."""
    start, now = epoch_seconds(shown.saga.created_at) or 0.0, round(1000 * shown.saga.elapsed)
    ends = {"failed": "bad", "compensated": "undo"}
    spans: list[_Span] = []
    begin, failed, before = None, None, 0
    for entry in shown.log:
        ms = round(1000 * ((epoch_seconds(entry.time) or start) - start))
        if entry.step == step.name:
            again, undoing = _AGAIN.search(entry.detail), entry.before == "compensating"
            begin = begin if entry.before else before
            if begin is not None and (again or entry.before != entry.after):
                status = "failed" if again else entry.after if entry.before else step.status
                what = f"compensation of {step.name}" if undoing else step.name
                title = f"{what}: {entry.detail or status}"
                spans.append(_Span(entry.number, begin, ms, ends.get(status, ""), title))
                begin = None
            if entry.before == "failed" and failed is not None:
                spans.append(
                    _Span(entry.number, failed, ms, "wait", f"{step.name} failed and waits for a decision")
                )
            failed = ms if entry.after == "failed" else None
            if again:
                begin = min(ms + round(1000 * float(again[1])), max(now, ms))
                spans.append(_Span(entry.number, ms, begin, "wait", "waits for the next attempt"))
            elif entry.after in ("in_progress", "compensating"):
                begin = ms
        before = ms
    if begin is not None:
        spans.append(_Span(shown.log[-1].number, begin, max(begin, now), "run", f"{step.name} is running"))
    return spans


def _gaps(spans: Iterable[_Span], total: int) -> list[tuple[int, int]]:
    """The long gaps in which nothing ran."""
    gaps, end = [], 0
    for each in sorted(spans, key=lambda span: span.begin):
        if each.begin - end > _LONG * total:
            gaps.append((end, each.begin))
        end = max(end, each.end)
    return gaps if total - end <= _LONG * total else [*gaps, (end, total)]


def _placing(total: int, folds: Sequence[tuple[int, int]]) -> Callable[[int], float]:
    """The place of a time."""
    shown = total - sum(end - begin for begin, end in folds)
    scale = (_ROOM - FOLDED * len(folds)) / max(shown, 1)

    def place(ms: int) -> float:
        x = ms * scale
        for begin, end in folds:
            if ms > begin:
                inside = min(ms, end) - begin
                x += FOLDED * inside / (end - begin) - inside * scale
        return round(x, 1)

    return place


def _marks(total: int, folds: Sequence[tuple[int, int]], place: Callable[[int], float]) -> list[Mark]:
    shown = max(total - sum(end - begin for begin, end in folds), 1)
    nice = (base * 10**power for power in range(9) for base in (1, 2, 5))
    tick = next((each for each in nice if shown / each <= _TICKS), total or 1)
    folded = [
        Mark(place(begin), f"{seconds_text((end - begin) / 1000)} skipped", FOLDED) for begin, end in folds
    ]
    taken = [each.x + FOLDED / 2 for each in folded]
    marks = []
    for begin, end in pairwise([0, *(ms for fold in folds for ms in fold), total + 1]):
        if (begin, end) in folds:
            continue
        for ms in range(-(-begin // tick) * tick, end, tick):
            x = place(ms)
            if all(abs(x - other) >= _APART for other in taken):
                taken.append(x)
                marks.append(Mark(x, "0" if ms == 0 else seconds_text(ms / 1000)))
    return [*marks, *folded]


def _bars(rows: Sequence[Sequence[_Span]], place: Callable[[int], float]) -> list[Bar]:
    bars: list[Bar] = []
    overlap = any(one[-1].end > other[0].begin for one, other in pairwise(rows))
    for row, spans in enumerate(rows):
        for each in spans:
            x = place(each.begin)
            y, height = (6 + row % 2 * 10, 8) if overlap else (9, 12)
            if each.kind == "wait":
                y, height = y + height // 2 - 2, 4
            width = round(max(place(each.end) - x, _LEAST), 1)
            bars.append(Bar(each.number, each.kind, x, width, y, height, each.title))
    return bars


def _took(steps: Sequence[StoryStep]) -> str:
    ms = max(step.end for step in steps) - min(step.begin for step in steps)
    took = seconds_text(ms / 1000) if ms else "<1 ms"
    tries = sum(len(step.again) for step in steps)
    if len(steps) > 1:
        return f"{len(steps)} messages in {took}"
    return (
        f"{took}, {tries + (steps[0].letter is None)} attempts"
        if tries > 1 or steps[0].state == "retry"
        else took
    )
