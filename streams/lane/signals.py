"""What the tasks of a lane let each other know."""

from __future__ import annotations

import asyncio


class Signals:
    """Of one lane.

    Attributes:
        work: there may be something to commit.
        room: there may be room for more messages.
        error: what a handler in the background has failed with; the lane ends its session for it.
    """

    def __init__(self) -> None:
        self.work = asyncio.Event()
        self.room = asyncio.Event()
        self.error: BaseException | None = None

    def all(self) -> None:
        """Wake whoever waits."""
        self.work.set()
        self.room.set()

    def progress(self, error: BaseException | None) -> None:
        """A handler in the background has come further, or has failed."""
        self.error = self.error or error
        self.all()
