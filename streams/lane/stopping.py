"""Giving up what takes long when one is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
