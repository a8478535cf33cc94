"""Runs the messages of each key in order: at once, or in the background while other keys continue.

A key with a running async handler or a payload in transfer blocks its later messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing

from streams.engine.staging.arrival import Arrival, Head, Later, PendingOperation
from streams.engine.waiting.due import DueHeads
from streams.engine.way.attempt import Attempts
from streams.engine.way.loopback import Loopback
from streams.errors import SteadfaustError
from streams.escapes import Contained
from streams.logs import handling


class Dispatch:
    """Keeps one lane's messages in order within each key, and bounds its background tasks."""

    def __init__(
        self,
        attempts: Attempts,
        loopback: Loopback | None,
        due: DueHeads,
        progress: Callable[[BaseException | None], None],
    ) -> None:
        """Without `loopback`, the lane handles its own messages only after it has read them. `progress` is
        called when a background task advances or ends, with the error if it failed.
        """
        self._attempts = attempts
        self._loopback = loopback
        self._due = due
        self._progress = progress
        #: Keys that run in the background, each with its later messages. Only this class changes it.
        self._in_flight = due.in_flight
        self.clock = attempts.clock
        self._staging = attempts.waiting.staging
        self._max_in_flight = self._staging.app.lane_options.max_in_flight
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        """Number of keys with a running async handler or a payload in transfer."""
        return len(self._in_flight)

    @property
    def tasks(self) -> int:
        """Number of background tasks: one for each key in flight."""
        return len(self._tasks)

    @property
    def room(self) -> int:
        """How many more keys may start. Some slots are reserved for due retries that could not start."""
        return max(0, self._max_in_flight - self.in_flight - self._due.reserved)

    async def close(self) -> None:
        """Cancel the running tasks. Their entries are not finished, so nothing of them is committed."""
        self._attempts.closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """A periodic task: run due heads of queues, and the messages behind them, up to `room` messages."""
        with closing(self._due.due(room, now)) as heads:
            for arrival in heads:
                self.dispatch(arrival, now)
        return self._due.started > 0

    def dispatch_all(self, arrivals: Sequence[Arrival], now: float) -> None:
        """Run messages in order, at `now` (epoch seconds), or queue them behind earlier ones of their keys.
        Raises HandlerFailed.
        """
        for arrival in arrivals:
            self._dispatch(arrival, now)
        handling(None)

    def dispatch(self, arrival: Arrival, now: float) -> None:
        """Run or queue one message. Raises HandlerFailed."""
        self._dispatch(arrival, now)
        handling(None)

    def dispatch_operation(self, operation: PendingOperation, now: float) -> None:
        """Carry out an operation at `now`, or queue it behind earlier messages of its key."""
        if operation.key in self._in_flight:
            self._in_flight[operation.key].append(operation)
        elif (message := self._carry_out(operation, now)) is not None:
            self.dispatch(message, now)

    def _dispatch(self, arrival: Arrival, now: float) -> None:
        key = arrival.key
        if key in self._in_flight:
            self._in_flight[key].append(arrival)
            return
        while self._attempts.run_handlers(arrival, now):
            if isinstance(arrival, Head):  # the next message of its queue may follow
                handling(None)
            if (following := self._done(arrival)) is None:
                return
            arrival = following
        # An attempt takes time: later messages of the key wait for it.
        self._in_flight[key] = deque()
        task: asyncio.Task[None] = asyncio.create_task(Contained(self._run_key(key, arrival)))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def _run_key(self, key: bytes, arrival: Arrival) -> None:
        """Run a message with a slow attempt, then later ones of its key, until none is left."""
        later, slow = self._in_flight[key], arrival
        while True:
            async with self._attempts.payloads.room(slow):
                await self._attempts.run_in_background(slow)
            if (following := self._done(slow)) is not None:
                later.append(following)
            if (next_one := self._run_later(later)) is None:
                break
            slow = next_one
        del self._in_flight[key]

    def _run_later(self, later: Later) -> Arrival | None:
        """Run what arrived for a key meanwhile. Returns the first message with a slow attempt; None: nothing
        is left.
        """
        while later:
            self._progress(None)
            arrival, now = later.popleft(), self.clock.now()
            message = self._carry_out(arrival, now) if isinstance(arrival, PendingOperation) else arrival
            if message is None:
                continue
            done = self._attempts.run_handlers(message, now)
            handling(None)
            if not done:
                return message
            if (following := self._done(message)) is not None:
                later.append(following)
        return None

    def _carry_out(self, operation: PendingOperation, now: float) -> Arrival | None:
        """Carry out an operation. Returns the message of a dead letter that starts over, if there is one. If
        not, the operation's entry is finished.
        """
        message = operation.carry_out(operation, now)
        if message is None:
            self._staging.order.finished(operation.entry)
        return message

    def _done(self, arrival: Arrival) -> Arrival | None:
        """Finish the entry of a message whose handlers have all decided, so that it can be committed.

        Returns the message behind it in its queue, if that may run now.
        """
        if self._loopback is not None:
            self._loopback.complete(arrival)
        self._staging.order.finished(arrival.entry)
        if arrival.handlers:
            self._staging.counters.handled += 1
        return self._due.after(arrival, self.clock.now()) if isinstance(arrival, Head) else None

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._progress(task.exception())
        elif not self._attempts.closed:  # its key would stay blocked
            self._progress(
                SteadfaustError("a task of the lane was cancelled unexpectedly: the lane opens again")
            )
