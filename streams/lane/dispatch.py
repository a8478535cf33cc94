"""Messages run in the order of their keys: at once, or in the background while other keys go on.

A key with an async handler or a payload under way holds its later messages back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from streams.lane.attempt import Attempts
from streams.lane.loopback import Loopback
from streams.retry.due import DueHeads
from streams.staging.arrival import Arrival
from streams.staging.payloads import Unfinished


class Dispatch:
    """The order of keys, the tasks and the room of one lane."""

    def __init__(
        self,
        attempts: Attempts,
        loopback: Loopback | None,
        due: DueHeads,
        progress: Callable[[BaseException | None], None],
    ) -> None:
        """Without `loopback` all that the lane sends to itself is handled when it has read it. `progress` is
        called when a task has come further or has ended, with its error if it failed.
        """
        self._attempts = attempts
        self._loopback = loopback
        self._due = due
        self._progress = progress
        #: Only this class changes it: each key in the background, with its later messages.
        self._in_flight = due.in_flight
        self.clock = attempts.clock
        self._staging = attempts.waiting.staging
        self._max_in_flight = self._staging.app.lane_options.max_in_flight
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        """Keys with an async handler or a payload under way."""
        return len(self._in_flight)

    @property
    def tasks(self) -> int:
        """Number of background tasks: one for each key in flight."""
        return len(self._tasks)

    @property
    def room(self) -> int:
        """How many keys more new messages may begin; a part is kept for due heads that found no place."""
        return self._max_in_flight - self.in_flight - self._due.reserved

    async def close(self) -> None:
        """Cancel what is under way. Its entry is not finished, so nothing of it is committed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def dispatch_all(self, arrivals: Sequence[Arrival], now: float) -> None:
        """Dispatch messages in their order, at `now` (epoch seconds). Raises HandlerFailed."""
        for arrival in arrivals:
            self.dispatch(arrival, now)

    def dispatch(self, arrival: Arrival, now: float) -> None:
        """Run a message, or let it wait for its key. Raises HandlerFailed."""
        key = arrival.record.key or b""
        if key in self._in_flight:
            self._in_flight[key].append(arrival)
            return
        if arrival.operation is not None:
            arrival.operation.carry_out(arrival, now)
        unfinished: Unfinished | None = None
        if not (arrival.route.is_async and arrival.handlers):
            while arrival.message is not None or not arrival.lacks_payload:
                if (unfinished := self._attempts.run(arrival, now)) is not None:
                    break
                if (following := self._done(arrival)) is None:
                    return
                arrival = following
        # The rest is for the background: later messages of the key wait for it.
        self._in_flight[key] = deque([arrival])
        task = asyncio.create_task(self._run_key(key, unfinished))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def _run_key(self, key: bytes, unfinished: Unfinished | None) -> None:
        """Run a key's messages one after the other until none is left."""
        queue = self._in_flight[key]
        while queue:
            arrival = queue.popleft()
            if arrival.operation is not None:
                arrival.operation.carry_out(arrival, self.clock.now())
            if unfinished is not None or arrival.lacks_payload:
                async with self._attempts.payloads.room(arrival, unfinished):
                    await self._attempts.run_in_background(arrival, unfinished)
                unfinished = None
            elif arrival.route.is_async:
                await self._attempts.run_in_background(arrival)
            elif (unfinished := self._attempts.run(arrival, self.clock.now())) is not None:
                queue.appendleft(arrival)
                continue
            if (following := self._done(arrival)) is not None:
                queue.append(following)
            if queue:
                self._progress(None)
        del self._in_flight[key]

    def _done(self, arrival: Arrival) -> Arrival | None:
        """A run of a message is over: it is done, waits as a row, or is given up. Its entry may be
        committed now.

        Returns the message behind it in its queue, if that may run now.
        """
        if self._loopback is not None:
            self._loopback.complete(arrival)
        self._staging.order.finished(arrival.entry)
        if arrival.handlers:
            self._staging.counters.handled += 1
        return self._due.after(arrival, self.clock.now()) if arrival.queue else None

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._progress(task.exception())
