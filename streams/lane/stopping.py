"""What takes long is given up when a lane stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns or raises; None when it was cancelled because `stopping` was set."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)
    return None if task.cancelled() else task.result()


async def side_by_side(
    *works: Coroutine[Any, Any, None],
    may_end: Coroutine[Any, Any, None],
    within: Callable[[], float],
    grave: tuple[type[Exception], ...],
) -> None:
    """Do all of this until the first error, or until one of them is through. `may_end` is then given `within`
    seconds to end by itself, the others none.

    Raises the worst error: what is no Exception at all, then what is `grave`. What ends the worker must not
    hide behind what broke because of it.
    """
    last = asyncio.create_task(may_end)
    tasks = [*map(asyncio.create_task, works), last]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if (patience := within()) > 0:
            await asyncio.wait((last,), timeout=patience)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
    for error in sorted(errors, key=lambda e: (isinstance(e, Exception), not isinstance(e, grave))):
        raise error
