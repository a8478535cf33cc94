"""How tests wait for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within: float = 60.0) -> None:
    """Wait for a condition; fail when it does not come true within so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not true within {within:g} s"
        time.sleep(0.01)
