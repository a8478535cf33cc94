"""The last hour minute by minute, in the memory of workers: sagas by status; attempts, messages that wait and
dead letters by handler; lag by topic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from streams.control.base.others import Others
from streams.control.base.view import Problem, WorkerView
from streams.model.envelope import rfc3339

HOURS_PATH = "/api/over-time"
#: Minutes that are kept.
KEPT = 60
#: In the order on the page: what needs attention first.
STATUSES = ("failed", "started", "completing", "compensating", "compensated", "completed", "unreadable")
#: Of a line, in the units of its picture.
WIDTH, HEIGHT, EDGE = 180.0, 28.0, 2.0
#: In place of a lane: of all lanes of a worker together.
TOGETHER = -1

KINDS = ("sagas", "attempts", "waiting", "letters", "lag")
#: By minute since the epoch and lane, counts by name.
Minutes = dict[int, dict[int, dict[str, int]]]


class CountsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one worker."""

    kinds: dict[str, Minutes]


class HourLine(msgspec.Struct, frozen=True, kw_only=True):
    """A count over time.

    Attributes:
        counts: one for each minute.
        since: when they begin, RFC 3339.
    """

    name: str
    since: str
    counts: list[int]

    @property
    def points(self) -> str:
        """The line in its picture, from the bottom at none to the top at the most."""
        top, last = max(*self.counts, 1), max(len(self.counts) - 1, 1)
        width, height = WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE
        return " ".join(
            f"{EDGE + width * n / last:.1f},{EDGE + height * (1 - count / top):.1f}"
            for n, count in enumerate(self.counts)
        )

    @property
    def most(self) -> int:
        """At most."""
        return max(self.counts)


class HoursAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour of all workers: lines by kind. `untold` are workers that did not send their counts."""

    lines: dict[str, list[HourLine]]
    untold: list[str] = []

    def of(self, kind: str, name: str) -> HourLine | None:
        """The line of this name; None where there are no two minutes of it."""
        return next((each for each in self.lines[kind] if each.name == name and len(each.counts) > 1), None)

    def totals(self) -> dict[str, HourLine]:
        """All lines of each kind together, where there are two minutes; of sagas those that failed."""
        found = {}
        for kind, all_ in self.lines.items():
            some = [each for each in all_ if kind != "sagas" or each.name == "failed"]
            if some and len(some[0].counts) > 1:
                counts = [sum(each) for each in zip(*(each.counts for each in some), strict=True)]
                found[kind] = HourLine(name=kind, since=some[0].since, counts=counts)
        return found


class Hours:
    """The last hour of a worker, of each kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, Minutes] = {}

    def put(self, kind: str, now: float, lane: int, counts: Mapping[str, int], *, add: bool = False) -> None:
        """Keep what was counted of a lane: the last count of a minute stays, or is added to."""
        minute, minutes = int(now // 60), self.kinds.setdefault(kind, {})
        lanes = minutes.setdefault(minute, {})
        lanes[lane] = dict(Counter(lanes.get(lane, {})) + Counter(counts)) if add else dict(counts)
        for old in [each for each in minutes if each <= minute - KEPT]:
            del minutes[old]


def lines(answers: Iterable[Minutes], now: int) -> list[HourLine]:
    """The counts of several workers as lines, from the first minute on for which all lanes are known; a lane
    that was not counted in a minute is as it was before.
    """
    found: dict[int, dict[int, dict[str, int]]] = defaultdict(dict)
    shown = range(now - KEPT + 1, now + 1)
    for number, minutes in enumerate(answers):
        for minute, lanes in minutes.items():
            if minute in shown:  # who has no lanes any more keeps what is older; clocks may be ahead
                # What is of a worker's lanes together is beside that of other workers.
                found[minute] |= {lane if lane >= 0 else lane - number: each for lane, each in lanes.items()}
    everywhere = {lane for lanes in found.values() for lane in lanes}
    last: dict[int, Mapping[str, int]] = {}
    since, totals = now, list[Counter[str]]()
    for minute in range(min(found, default=now), now + 1):
        last |= found.get(minute, {})
        if len(last) == len(everywhere):
            since = min(since, minute)
            totals.append(sum((Counter(counts) for counts in last.values()), Counter()))
    return _lines(totals, since)


async def over_time(view: WorkerView, own: CountsAnswer, others: Others[CountsAnswer]) -> HoursAnswer:
    """The last hour of all workers. Silent ones, and those of a version that does not count so, are named."""
    answers = await others.each(view, HOURS_PATH)
    counts = [own, *(each for each in answers.values() if not isinstance(each, Problem))]
    now = int(view.now() // 60)
    return HoursAnswer(
        lines={
            # Attempts of a minute that is not over are too few.
            kind: lines([each.kinds.get(kind, {}) for each in counts], now - (kind == "attempts"))
            for kind in KINDS
        },
        untold=[url for url, each in answers.items() if isinstance(each, Problem)],  # the overview says why
    )


def _lines(totals: Sequence[Counter[str]], since: int) -> list[HourLine]:
    seen = {name for total in totals for name, count in total.items() if count}
    order = [*(each for each in STATUSES if each in seen), *sorted(seen - set(STATUSES))]
    return [
        HourLine(name=each, since=rfc3339(since * 60.0), counts=[total[each] for total in totals])
        for each in order
    ]
