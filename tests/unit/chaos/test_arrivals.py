"""A careless client sends everything, some of it again, and little in order."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chaos.load.arrivals import LATEST, REPEATED, WINDOW, arrivals

MANY = 20_000


@given(st.integers(0, 3000), st.integers())
def test_everything_arrives_and_nothing_more_than_three_times(count: int, seed: int) -> None:
    times = Counter(arrivals(range(count), random.Random(seed)))
    assert set(times) == set(range(count))
    assert all(1 <= each <= 3 for each in times.values())


def test_about_every_tenth_comes_again_at_once_and_later() -> None:
    seen = list(arrivals(range(MANY), random.Random(1)))
    places: dict[int, list[int]] = {}
    for place, item in enumerate(seen):
        places.setdefault(item, []).append(place)
    apart = [found[-1] - found[0] for found in places.values() if len(found) > 1]
    assert 0.8 < len(apart) / (MANY / REPEATED) < 1.2
    assert min(apart) < WINDOW
    assert max(apart) > LATEST / 2
