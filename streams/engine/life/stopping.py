"""Run coroutines that end together, or when a lane stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from streams.errors import ends_process
from streams.escapes import Contained, ordinary

T = TypeVar("T")


async def unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work` and return or raise what it does. Once `stopping` is set, cancel it and return None."""
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
    last: Coroutine[Any, Any, None],
    grace: Callable[[], float],
    fatal: tuple[type[Exception], ...],
) -> None:
    """Run coroutines until the first of them ends or fails. Then wait up to `grace()` seconds for `last` to
    end by itself, and cancel all that still run.

    Raises the worst error: first one that ends the process, then one of `fatal`. An error that ends the
    worker must not be hidden by errors that followed from it. An error that is no Exception is raised as an
    Escaped.
    """
    ending: asyncio.Task[None] = asyncio.create_task(Contained(last))
    tasks = [*(asyncio.create_task(Contained(work)) for work in works), ending]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if (patience := grace()) > 0:
            await asyncio.wait((ending,), timeout=patience)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
    for error in sorted(errors, key=lambda e: (not ends_process(e), not isinstance(e, fatal))):
        raise error if ends_process(error) else ordinary(error)
