"""Waiting for a condition, with a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiokafka.errors import KafkaError

from streams.errors import SteadfaustError

_LOOK_EVERY = 0.05
_ASK_EVERY = 0.3
_ANSWER_WITHIN = 5.0


class ChaosFailed(SteadfaustError):
    """The run cannot go on, or a condition did not come true in time."""


async def until(condition: Callable[[], object], what: str, *, within: float) -> None:
    """Wait until the condition is true, for so many seconds at most. Raises ChaosFailed, which says what."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise ChaosFailed(f"not within {within:g} s: {what}")
        await asyncio.sleep(_LOOK_EVERY)


async def until_answered(ask: Callable[[], Awaitable[bool]], what: str, *, within: float) -> None:
    """The same for a question to Kafka; while it does not answer, the answer is no."""
    deadline = time.monotonic() + within
    last: Exception | None = None
    while True:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN):
                if await ask():
                    return
        except (KafkaError, SteadfaustError, OSError, TimeoutError) as error:
            last = error
        if time.monotonic() > deadline:
            raise ChaosFailed(f"not within {within:g} s: {what} ({last!r})") from last
        await asyncio.sleep(_ASK_EVERY)
