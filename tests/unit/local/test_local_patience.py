import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.local.busy_timeout import LONGEST, BusyTimeout, Used, counted, used_by
from tests.waiting import eventually


class Machine:
    """A clock, and what processes have used by then: they get `share` of a processor that they ask for."""

    def __init__(self, share: float, *, asks: float = 1.0) -> None:
        self.now = 0.0
        self.share = share
        self.asks = asks
        self.used = Used(0.0, 0.0)
        self.said: list[str] = []

    def patience(self, within: float) -> BusyTimeout:
        said = self.said.append
        clock, used = (lambda: self.now), (lambda _: self.used)
        return BusyTimeout("broker 1", within, lambda: [1], said, clock=clock, used=used)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        ran, waited = self.used
        asked = seconds * self.asks
        self.used = Used(ran + asked * self.share, waited + asked * (1 - self.share))


def lasts(machine: Machine, within: float) -> float:
    patience = machine.patience(within)
    while not patience.over():
        machine.pass_by(1.0)
    return machine.now


@pytest.mark.parametrize(
    ("seconds", "used", "counts"),
    [
        pytest.param(1.0, Used(0.0, 0.0), 1.0, id="it does nothing"),
        pytest.param(1.0, Used(1.0, 0.0), 1.0, id="it has a processor of its own"),
        pytest.param(1.0, Used(0.1, 0.9), 0.19, id="it has a tenth of one"),
        pytest.param(1.0, Used(0.05, 20.0), 0.002, id="twenty threads wait for one"),
        pytest.param(1.0, Used(0.001, 0.009), 0.99, id="it asks for little, and waits for something else"),
    ],
)
def test_time_counts_as_far_as_there_was_a_processor(seconds: float, used: Used, counts: float) -> None:
    assert counted(seconds, used) == pytest.approx(counts, abs=0.005)


@given(st.floats(0, 1000), st.builds(Used, ran=st.floats(0, 1000), waited=st.floats(0, 1000)))
def test_no_more_counts_than_there_was(seconds: float, used: Used) -> None:
    assert 0 <= counted(seconds, used) <= seconds


@pytest.mark.parametrize(
    ("share", "asks", "least", "most"),
    [
        pytest.param(1.0, 1.0, 58, 62, id="an idle machine: the seconds that it says"),
        pytest.param(0.1, 0.01, 57, 63, id="a process that hangs on a busy one: the same"),
        pytest.param(0.25, 1.0, 121, 239, id="a quarter of a processor: more"),
        pytest.param(0.001, 1.0, 60 * LONGEST - 2, 60 * LONGEST + 2, id="it ends at last"),
    ],
)
def test_it_lasts_while_there_was_a_processor(share: float, asks: float, least: float, most: float) -> None:
    assert least <= lasts(Machine(share, asks=asks), 60) <= most


def test_it_says_how_long_it_waits_and_what_counts() -> None:
    busy, idle = Machine(share=0.1), Machine(share=1.0)
    for machine in (busy, idle):
        patience = machine.patience(60)
        for _ in range(25):
            machine.pass_by(1.0)
            patience.over()
    assert len(busy.said) == len(idle.said) == 2
    assert busy.said[0].startswith("waiting for broker 1: 10 s, of which 2 s of 60 count")
    assert idle.said[1] == "waiting for broker 1: 20 s of 60"


def test_who_gives_up_tells_both_times() -> None:
    machine = Machine(share=0.1)
    patience = machine.patience(5)
    while not patience.over():
        machine.pass_by(1.0)
    assert str(patience).endswith("s (5 s of a processor of its own)")


@pytest.mark.stack
def test_what_a_process_has_used_is_read_from_the_system() -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        eventually(lambda: used_by([spinning.pid]).ran >= 0.05, "it has used something")
    finally:
        spinning.kill()
        spinning.wait()
    assert used_by([spinning.pid]) == Used(0.0, 0.0)  # it has gone
