"""Faults that any run may have."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

POINTS = ("staged", "begun", "sent", "offsets_sent", "committed", "applied")


def kinds_of(rng: Random, machines: int) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """For each kind of fault, a function that draws the arguments of its step."""

    def machine() -> int:
        return rng.randrange(machines)

    return {
        "kill": lambda: (machine(), rng.choice((0, 0, 1, 5)), rng.choice((0.5, 4.0, 30.0))),
        "kill_at": lambda: (machine(), rng.choice(POINTS), rng.randint(1, 3), rng.choice((0, 1, 5))),
        "lose_disk": lambda: (machine(), rng.choice((0.5, 15.0))),
        "freeze": lambda: (machine(), rng.choice((1.0, 12.0, 40.0))),
        "freeze_at": lambda: (machine(), rng.choice(POINTS), rng.randint(1, 3), rng.choice((1.0, 20.0))),
        "cut_off": lambda: (machine(), rng.choice((1.0, 12.0, 40.0))),
        "restart": lambda: (machine(), rng.choice((0.1, 3.0, 15.0))),
        "rebalance": tuple,
        "lost_answer": lambda: (
            rng.choice(("COMMIT_DONE", "COMMIT_LOST", "SEND_REFUSED", "SEND_TORN", "SEND_UNANSWERED",
                        "OFFSETS_REFUSED", "START_FAILED", "FETCH_DELAYED", "UNAVAILABLE")),
            rng.randint(0, 3),
        ),
        "outage": lambda: (rng.choice((2.0, 15.0)),),
        "clock": lambda: (machine(), rng.choice((-3600.0, -30.0, 30.0, 3540.0))),
        "compact": tuple,
        # True: the disk is broken, so that rows cannot be read, either.
        "disk_full": lambda: (machine(), *rng.choice(((0.5, False), (20.0, True), (90.0, False)))),
        "damage_disk": lambda: (machine(), rng.choice((0.5, 4.0))),
        "refusal": lambda: (rng.choice((0.5, 20.0, 90.0)),),
    }  # fmt: skip
