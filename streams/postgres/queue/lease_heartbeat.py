"""The connection for notifications of jobs and heartbeats of leases; made again when lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import asyncpg
import structlog

from streams.errors import text_of
from streams.postgres.bounded import is_pooled
from streams.postgres.database import UNAVAILABLE, Connection
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.queue.queue import SQL

log = structlog.get_logger(__name__)

#: What ends a pulse, and not the worker: the next one may go well.
_LOST = (*UNAVAILABLE, DatabaseUnavailable, asyncpg.PostgresError)

#: Of all queues; the payload says which.
CHANNEL = "steadfaust_queue"
_AGAIN, _LONGEST = 0.5, 5.0
#: Between looks for jobs that a clock ahead has put off, in seconds, and how many times our own lease one of
#: another worker may last: it may have other options.
_NEARER_EVERY = 60.0
_LONGEST_LEASE = 20


class LeaseHeartbeat:
    """Listens, and renews leases three times in the time of one. When it has connected, as after a failover,
    and once a minute, it brings jobs nearer that a clock of the database which was ahead has put off.

    Arguments:
        open_session: opens a connection; raises DatabaseUnavailable.
        queue: the name of the queue that sends notifications.
        lease: in seconds.
        notified: called when one has come.
        back: called when the connection is there, and what came before it may have been missed.
    """

    def __init__(
        self,
        open_session: Callable[[], Awaitable[Connection]],
        queue: str,
        lease: float,
        *,
        notified: Callable[[], None],
        back: Callable[[], None],
    ) -> None:
        self.leases: set[int] = set()
        self._open = open_session
        self._queue = queue
        self._lease = lease
        self._wake = notified
        self._back = back

    async def run(self) -> None:
        """Until cancelled."""
        pause = _AGAIN
        while True:
            began = asyncio.get_running_loop().time()
            try:
                connection = await self._open()
                try:
                    await self._live(connection)
                finally:
                    connection.terminate()
            except _LOST as error:
                log.warning("queue_pulse_lost", queue=self._queue, error=text_of(error))
            lived = asyncio.get_running_loop().time() - began > self._lease
            pause = _AGAIN if lived else min(pause * 2, _LONGEST)
            await asyncio.sleep(pause)

    async def _live(self, connection: Connection) -> None:
        closed = asyncio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        if not is_pooled(connection):  # a pooler brings no notifications
            await connection.add_listener(CHANNEL, self._notified)
        self._back()
        lasting = timedelta(seconds=self._lease)
        looked = -_NEARER_EVERY
        while not closed.is_set():
            if (now := asyncio.get_running_loop().time()) >= looked + _NEARER_EVERY:
                looked = now
                await connection.execute(SQL["nearer"], self._queue, lasting * _LONGEST_LEASE)
            # Without leases too: a network that has fallen silent brings no notifications.
            await connection.execute(SQL["renew"], list(self.leases), lasting)
            # Not wait_for: on Python 3.11 it swallows a cancellation that comes as the connection ends.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease / 3):
                    await closed.wait()

    def _notified(self, _connection: object, _pid: int, _channel: str, queue: object) -> None:
        if queue == self._queue:
            self._wake()
