"""In which order, and how often, a careless client sends what it has: a pure function of chance."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: What is sent is this many places away from where it belongs, more or less.
WINDOW = 200
#: One of so many is sent twice or three times.
REPEATED = 10
#: A repetition comes at once, or up to so many places later.
LATEST = 2000


def arrivals(items: Iterable[T], chance: random.Random) -> Iterator[T]:
    """Each item at least once, out of order within a window; every tenth or so again, now or later."""
    held: list[T] = []
    later: list[tuple[int, int, T]] = []
    for place, item in enumerate(items):
        held.append(item)
        for number in range(_copies(chance)):
            if chance.random() < 0.5:
                held.append(item)
            else:
                heapq.heappush(later, (place + chance.randint(WINDOW, LATEST), place * 2 + number, item))
        while later and later[0][0] <= place:
            held.append(heapq.heappop(later)[2])
        while len(held) > WINDOW:
            yield _draw(held, chance)
    held += [item for _, _, item in sorted(later, key=lambda each: each[:2])]
    while held:
        yield _draw(held, chance)


def _copies(chance: random.Random) -> int:
    return chance.choice((1, 2)) if chance.randrange(REPEATED) == 0 else 0


def _draw(held: list[T], chance: random.Random) -> T:
    place = chance.randrange(len(held))
    held[place], held[-1] = held[-1], held[place]
    return held.pop()
