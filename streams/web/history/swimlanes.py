"""Where the time of a story went: a lane for each service, a track for each handler, gaps folded. Pure.

Places are per cent of the width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from streams.model.envelope import epoch_seconds
from streams.web.base.formatting import seconds_text
from streams.web.history.story import Story, StoryStep

#: Part of the whole time from which on a gap is folded, and the room that it takes then.
_LONG, FOLDED = 0.4, 11.0
#: Room of all, of the shortest bar, and between two texts of the axis.
_ROOM, _LEAST, _APART = 97.0, 0.8, 8.0
_TICKS = 7


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


class Swimlane(NamedTuple):
    """The tracks of a service."""

    service: str
    tracks: list[Track]


class Swimlanes(NamedTuple):
    """All of it."""

    marks: list[Mark]
    lanes: list[Swimlane]
    span: str


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of a step: milliseconds, kind of bar, title."""

    begin: int
    end: int
    kind: str
    title: str


def swimlanes(story: Story) -> Swimlanes:
    """The picture of a story's steps."""
    steps = [step for step in story.steps if step.handler]
    spans = {id(step): _spans(step) for step in steps}
    busy = [each for found in spans.values() for each in found if each.kind != "wait"]
    total = max((each.end for each in busy), default=0)
    folds = _gaps(busy, total)
    place = _placing(total, folds)
    lanes: dict[str, dict[str, list[StoryStep]]] = {}
    for step in steps:
        lanes.setdefault(step.service, {}).setdefault(step.handler, []).append(step)
    return Swimlanes(
        marks=_marks(total, folds, place),
        lanes=[
            Swimlane(service, [_track(handler, found, spans, place) for handler, found in tracks.items()])
            for service, tracks in lanes.items()
        ],
        span=seconds_text(total / 1000),
    )


def _spans(step: StoryStep) -> list[_Span]:
    """A step as spans: each attempt that failed, the wait until the next one, and the last attempt."""
    kinds = {"done": "", "retry": "", "wait": "wait"}
    took, begin, spans = f"{step.handler} took {step.entry.type}", step.begin, []
    for number, again in enumerate(step.again, 1):
        spans.append(_Span(begin, again.after_ms, "bad", f"{took}, attempt {number} failed"))
        due, at = epoch_seconds(again.failure.get("due", "")), epoch_seconds(again.time)
        begin = again.after_ms
        if due is not None and at is not None and due > at:
            begin = min(again.after_ms + round(1000 * (due - at)), max(step.end, again.after_ms))
            spans.append(_Span(again.after_ms, begin, "wait", "waits for a retry"))
    if step.letter is None:
        kind = kinds.get(step.state, step.state)
        spans.append(_Span(begin, max(begin, step.end), kind, f"{took}: {step.summary}"))
    return spans


def _gaps(spans: Iterable[_Span], total: int) -> list[tuple[int, int]]:
    """The long gaps in which nothing ran."""
    gaps, end = [], 0
    for each in sorted(spans, key=lambda span: span.begin):
        if each.begin - end > _LONG * total:
            gaps.append((end, each.begin))
        end = max(end, each.end)
    return gaps


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
        Mark(place(begin), f"{seconds_text((end - begin) / 1000)} folded", FOLDED) for begin, end in folds
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


def _track(
    handler: str, steps: Sequence[StoryStep], spans: dict[int, list[_Span]], place: Callable[[int], float]
) -> Track:
    bars: list[Bar] = []
    overlap = any(one.end > other.begin for one, other in pairwise(steps))
    for row, step in enumerate(steps):
        for each in spans[id(step)]:
            x = place(each.begin)
            y, height = (6 + row % 2 * 10, 8) if overlap else (9, 12)
            if each.kind == "wait":
                y, height = y + height // 2 - 2, 4
            width = round(max(place(each.end) - x, _LEAST), 1)
            bars.append(Bar(step.entry.number, each.kind, x, width, y, height, each.title))
    return Track(handler.partition(".")[2], _took(steps), bars)


def _took(steps: Sequence[StoryStep]) -> str:
    ms = max(step.end for step in steps) - min(step.begin for step in steps)
    took = seconds_text(ms / 1000) if ms else "<1 ms"
    tries = sum(len(step.again) for step in steps)
    if len(steps) > 1:
        return f"{len(steps)} in {took}"
    return (
        f"{took}, {tries + (steps[0].letter is None)} tries"
        if tries > 1 or steps[0].state == "retry"
        else took
    )
