"""How much longer workers took than on a machine of their own."""

import os
import threading
import time
from collections.abc import Mapping

import pytest

from chaos.faults.perform import Slowness, used_by_main_thread
from streams.local.busy_timeout import Used

Figures = Mapping[int, tuple[float, float]]


def factor(before: Figures, after: Figures) -> float:
    figures = before
    slowness = Slowness(lambda: list(figures), lambda pid: Used(*figures[pid]))
    figures = after
    return slowness.factor()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({1: (5.0, 1.0)}, {1: (7.0, 1.0)}, 1.0),
        ({1: (5.0, 1.0)}, {1: (9.0, 3.0)}, 1.5),
        ({1: (5.0, 1.0)}, {1: (5.0, 1.0)}, 1.0),
        ({1: (5.0, 1.0)}, {1: (6.0, 40.0)}, 2.0),
    ],
    ids=["never waited", "waited half as long as it ran", "did nothing", "hardly ran: at most doubled"],
)
def test_waiting_is_counted_beside_running(before: Figures, after: Figures, expected: float) -> None:
    assert factor(before, after) == expected


def test_only_the_main_thread_counts() -> None:
    pid = os.getpid()
    assert threading.get_native_id() == pid, "the tests run in the main thread"

    def burn(seconds: float) -> None:
        began = time.thread_time()
        while time.thread_time() - began < seconds:
            pass

    other = threading.Thread(target=burn, args=(0.3,))
    before = used_by_main_thread(pid)
    other.start()
    other.join()
    beside = used_by_main_thread(pid)
    burn(0.3)
    after = used_by_main_thread(pid)
    assert beside.ran - before.ran < after.ran - beside.ran
