"""How much of the tests each command tries, and in which order."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from tests import effort

TESTS = Path(__file__).parents[1]


def test_shrinking_ends_in_time_and_the_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.MAX_SHRINKING_SECONDS == effort.SHRINKING
    monkeypatch.setattr(engine, "MAX_SHRINKING_SECONDS", 0.5)
    failures = []

    @settings(max_examples=20, database=None)
    @given(st.lists(st.integers(), min_size=200, max_size=400))
    def slow(numbers: list[int]) -> None:
        if sum(number % 7 for number in numbers) > 20:
            time.sleep(0.02)
            failures.append(len(numbers))
            raise ValueError("too many")

    with pytest.raises(ValueError, match="too many"):
        slow()
    assert len(failures) > 5, "it has shrunk"


def test_examples_are_the_same_each_run_except_in_verify() -> None:
    same = {name: settings.get_profile(name).derandomize for name in effort.SHARES}
    assert same == {"check": True, "test": True, "verify": False}


def test_the_files_that_the_layout_names_are_there() -> None:
    named = re.findall(r"`((?:\w+/)?\w+\.py)", (TESTS / "README.md").read_text())
    assert len(named) > 20
    assert [n for n in named if not ((TESTS / n).is_file() or (TESTS / "scenarios" / n).is_file())] == []
