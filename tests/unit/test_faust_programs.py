"""Two of Faust's own programs, moved over: what they compute, and how many lines changed (docs/faust.md)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from examples import withdrawals, word_count
from examples.withdrawals import COUNTRY_TO_TOTAL, USER_TO_TOTAL, Total, WindowExpired, Withdrawal
from examples.word_count import WORD_COUNTS, Posted
from streams.testing import run_choreography, simulate

ROOT = Path(__file__).parents[2]


def posts(chance: Random) -> Iterator[Posted]:
    for number in range(chance.randint(1, 9)):
        yield Posted(post=f"p-{number}", text=" ".join(chance.choices(word_count.WORDS, k=5)))


@pytest.mark.parametrize("seed", range(5))
def test_each_word_is_counted_once_through_faults(seed: int) -> None:
    world = simulate(word_count.wiring, posts, seed)
    counted = sum(row.count for row in world.all_rows(WORD_COUNTS).values())
    assert counted == 5 * len(world.sent(Posted)) > 0


async def test_withdrawals_add_up_in_their_windows_until_they_expire() -> None:
    at = [(7200.0, 10.0), (7209.0, 5.0), (7210.0, 1.0), (10_800.0, 2.0)]
    sent = [Withdrawal(user="ada", country="se", amount=amount, date=date) for date, amount in at]
    world = await run_choreography(withdrawals.wiring, sent, timers="ignored")
    totals = {"7200": 16.0, "10800": 2.0}
    assert world.all_rows(USER_TO_TOTAL) == {("ada", w): Total(amount=a) for w, a in totals.items()}
    totals = {"7200": 15.0, "7210": 1.0, "10800": 2.0}
    assert world.all_rows(COUNTRY_TO_TOTAL) == {("se", w): Total(amount=a) for w, a in totals.items()}
    expired = [WindowExpired(country="se", date=7209.0)]
    world = await run_choreography(withdrawals.wiring, expired, world=world)
    assert set(world.all_rows(COUNTRY_TO_TOTAL)) == {("se", "7210"), ("se", "10800")}


def lines_of(path: Path) -> list[str]:
    """The lines that are not blank."""
    return [line.rstrip() for line in path.read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("program", ["word_count", "withdrawals"])
def test_the_page_counts_the_lines_that_changed(program: str) -> None:
    before = lines_of(ROOT / "tests" / "faust_programs" / f"{program}.py")
    after = lines_of(ROOT / "examples" / f"{program}.py")
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    kept = sum(block.size for block in blocks)
    counts = (len(before), len(after), kept, len(before) - kept, len(after) - kept)
    row = f"| `{program}.py` | {' | '.join(map(str, counts))} |"
    assert row in (ROOT / "docs" / "faust.md").read_text()
