"""A worker raises its limit of open files, and warns where even that may be too low."""

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from streams.host import loop

SHOWS = """
import resource
from streams.host.loop import tune_process
tune_process()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_worker_raises_its_soft_limit_to_the_hard_one() -> None:
    lower: Callable[[], None] = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (512, 2048))
    shown = subprocess.run([sys.executable, "-c", SHOWS], preexec_fn=lower, capture_output=True, check=True)
    assert shown.stdout.split() == [b"2048", b"2048"]


def test_what_lanes_and_standbys_may_want_is_counted() -> None:
    assert loop.wanted(0, 0, 3) < 300
    assert 256 < loop.wanted(1, 0, 3) - loop.wanted(0, 0, 3) < 320
    assert 256 < loop.wanted(0, 1, 3) - loop.wanted(0, 0, 3) < 320


@pytest.mark.parametrize(("limit", "warned"), [(1024, True), (65536, False), (resource.RLIM_INFINITY, False)])
def test_a_limit_below_that_is_warned_of(monkeypatch: pytest.MonkeyPatch, limit: int, warned: bool) -> None:
    monkeypatch.setattr(loop.resource, "getrlimit", lambda _: (limit, limit))
    said = loop.shortage(8, 8, 3)
    assert bool(said) is warned
    if warned:
        assert "1024 files" in said
        assert "LimitNOFILE" in said
