"""Repeat questions to a lane's owner while the group finds out who that is.

After a kill the dead worker stays the listed owner until its session has ended, and the next one opens the
lane then. All of that passes; the answer names the cause of the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from streams.control.base.view import Problem

T = TypeVar("T")

#: Why a lane's owner does not answer, where that passes by itself.
PASSING = frozenset(
    {"owner_unreachable", "owner_silent", "owner_moving", "no_owner", "lane_not_open", "not_yet"}
)
#: A caller that waits itself, and tells what for, names how long we are to wait: 0.
PATIENCE = "Steadfaust-Patience"
#: Between two tries, in seconds.
PAUSE = 0.25


async def patiently(
    question: Callable[[], Awaitable[T]],
    within: float,
    *,
    waits: Callable[[Problem], None] = lambda _: None,
    passing: tuple[type[Exception], ...] = (),
) -> T:
    """Ask until there is an answer, for `within` seconds; `waits` gets each problem that passes. Errors of
    the types `passing` pass, too.

    Raises Problem: one that does not pass, at once; else the last one, with how long it was waited for.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        try:
            return await question()
        except Problem as problem:
            if problem.error not in PASSING or within <= 0:
                raise
            if clock() - began >= within:
                detail = f"{problem.detail} (and it was so for {within:g} s)"
                raise Problem(problem.status, problem.error, detail) from problem
            waits(problem)
        except passing:
            if clock() - began >= within:
                raise
        await asyncio.sleep(PAUSE)


def patience_of(headers: Mapping[str, str], usual: float, most: float) -> float:
    """For how long the answer to these headers is waited for. Raises Problem 400."""
    try:
        return min(most, float(headers.get(PATIENCE, usual)))
    except ValueError:
        raise Problem(400, "bad_patience", f"{PATIENCE} is {headers[PATIENCE]!r}: give seconds") from None
