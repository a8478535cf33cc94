"""How tests wait for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(
    condition: Callable[[], object], what: str, timeout: float = 60.0, *, every: float = 0.05
) -> None:
    """Wait for a condition with a bound; it is looked at so often, in seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(every)
