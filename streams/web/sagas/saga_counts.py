"""How many sagas there were of each status, minute by minute for the last hour, in the memory of workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from streams.model.envelope import rfc3339

COUNTS_PATH = "/api/sagas-over-time"
#: Minutes that are kept.
KEPT = 60
#: In the order on the page: what needs attention first.
STATUSES = ("failed", "started", "completing", "compensating", "compensated", "completed", "unreadable")
#: Of a line, in the units of its picture.
WIDTH, HEIGHT, EDGE = 180.0, 28.0, 2.0

#: By minute since the epoch and lane, how many sagas there were of each status.
Minutes = dict[int, dict[int, dict[str, int]]]


class CountsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one worker."""

    minutes: Minutes


class StatusLine(msgspec.Struct, frozen=True, kw_only=True):
    """A status over time.

    Attributes:
        counts: one for each minute, the last one is of now.
        since: when they begin, RFC 3339.
    """

    status: str
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


class CountRing:
    """The last hour of a worker's lanes."""

    def __init__(self) -> None:
        self.minutes: Minutes = {}

    def put(self, now: float, lane: int, sagas: Mapping[tuple[str, str, str], int]) -> None:
        """Keep what was counted of a lane: by saga, way and status. The last count of a minute stays."""
        counts: Counter[str] = Counter()
        for (_, _, status), count in sagas.items():
            counts[status] += count
        minute = int(now // 60)
        self.minutes.setdefault(minute, {})[lane] = dict(counts)
        for old in [each for each in self.minutes if each <= minute - KEPT]:
            del self.minutes[old]


def lines(answers: Iterable[CountsAnswer], now: int) -> list[StatusLine]:
    """The counts of several workers as lines, from the first minute on for which all lanes are known; a lane
    that was not counted in a minute is as it was before.
    """
    found: dict[int, dict[int, dict[str, int]]] = defaultdict(dict)
    shown = range(now - KEPT + 1, now + 1)
    for answer in answers:
        for minute, lanes in answer.minutes.items():
            if minute in shown:  # who has no lanes any more keeps what is older; clocks may be ahead
                found[minute] |= lanes
    everywhere = {lane for lanes in found.values() for lane in lanes}
    last: dict[int, Mapping[str, int]] = {}
    since, totals = now, list[Counter[str]]()
    for minute in range(min(found, default=now), now + 1):
        last |= found.get(minute, {})
        if len(last) == len(everywhere):
            since = min(since, minute)
            totals.append(sum((Counter(counts) for counts in last.values()), Counter()))
    return _lines(totals, since)


def _lines(totals: Sequence[Counter[str]], since: int) -> list[StatusLine]:
    seen = {status for total in totals for status, count in total.items() if count}
    order = [*(each for each in STATUSES if each in seen), *sorted(seen - set(STATUSES))]
    return [
        StatusLine(status=each, since=rfc3339(since * 60.0), counts=[total[each] for total in totals])
        for each in order
    ]
