"""How tests wait for what happens elsewhere: for a condition, with one generous bound."""

import asyncio
import inspect
import time
from collections.abc import Callable

#: Seconds until a wait fails. A condition that comes true ends its wait at once, so that only a test that
#: fails takes so long; a machine that is busy or slow does not fail one.
BOUND = 120.0


def eventually(
    condition: Callable[[], object], what: str, *, every: float = 0.05, bound: float = BOUND
) -> None:
    """Wait until `condition()` is true, looking every so many seconds; `what` is named when it never is.
    Another bound is for work whose amount is a setting.
    """
    deadline = time.monotonic() + bound
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {bound:g} s: {what}")
        time.sleep(every)


async def eventually_async(
    condition: Callable[[], object], what: str, *, every: float = 0.05, bound: float = BOUND
) -> None:
    """The same where the loop goes on meanwhile; the condition may be a coroutine function."""
    deadline = time.monotonic() + bound
    while True:
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {bound:g} s: {what}")
        await asyncio.sleep(every)
