"""Waiting for a condition, with a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from chaos.errors import ChaosFailed

_LOOK_EVERY = 0.05


async def until(condition: Callable[[], object], what: str, *, within: float) -> None:
    """Wait until the condition is true, for so many seconds at most. Raises ChaosFailed, which says what."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise ChaosFailed(f"not within {within:g} s: {what}")
        await asyncio.sleep(_LOOK_EVERY)
