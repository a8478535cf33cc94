"""A relay's session with PostgreSQL: it holds the locks, and reads and marks by the same connection."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Self

import structlog
from asyncpg import PostgresError, QueryCanceledError
from asyncpg.exceptions import OperatorInterventionError

from streams.postgres.advice import advice
from streams.postgres.bounded import is_pooled
from streams.postgres.connecting import require_session
from streams.postgres.database import REFUSING, UNAVAILABLE, Connection, connect
from streams.postgres.errors import DatabaseUnavailable, StatementRefused
from streams.postgres.lock_waits import lock_wait_told
from streams.postgres.outbox import OutboxRow
from streams.postgres.outbox_owner import MEMBER, RelayKind, claim_outbox, outbox_owner
from streams.postgres.primary import Primary
from streams.postgres.relay.options import SHARDS, RelayOptions
from streams.postgres.statements import statements

log = structlog.get_logger(__name__)

_SQL = statements("relay/relay.sql")
#: The advisory locks: a member's number is its session's process id, a shard's its own.
_MEMBER, _SHARD = MEMBER, 0x6F75_7402
_CHANNEL = "outbox"
#: How the end of a session shows, or that the server cannot work now: another session may find one that can.
_ENDED = (*UNAVAILABLE, *REFUSING, OperatorInterventionError)


class RelaySession:
    """Owns shards for as long as its connection lives.

    The holder of a shard's lock is the only one to publish its rows, for PostgreSQL gives it to one
    session. A relay whose session was ended without its knowledge (it was frozen, or the network was) may
    still write what it had read: a zombie. What comes of it is duplicates with the same ids, and nothing
    else:

    - It cannot mark, count attempts or release: that takes the connection that is gone.
    - Each relay writes an aggregate's rows in their order, and begins with the first that is not marked.
      So in whatever way the writes of two are mixed, a row comes for the first time behind those before it.
    - It begins no batch later than half a lease after PostgreSQL has last answered, without asking again
      (`require`), and PostgreSQL gives a silent session's locks away after a whole one. So the repetitions
      are those of the batches that were under way.
    """

    def __init__(
        self, url: str, options: RelayOptions, wake: Callable[[], None], primary: Primary | None = None
    ) -> None:
        self._url = url
        self._primary = primary
        self._options = options
        self._wake = wake
        self._turn = asyncio.Lock()
        self._connection: Connection | None = None
        self._answered = 0.0
        self._pid = 0
        #: Who held the lock that a statement has waited for last; empty: none of the one before did.
        self._holder = ""
        self.lost = asyncio.Event()
        self.owned: set[int] = set()
        self.relays = 1

    async def open(self) -> Self:
        """Connect and join the relays.

        Raises DatabaseUnavailable, StatementRefused, OutboxOwned when the outbox is change data capture's, or
        PoolerBetween.
        """
        settings = self._settings()
        self._connection = await connect(
            self._url,
            name="steadfaust relay",
            bound=self._options.lease,
            primary=self._primary,
            settings=settings,
        )
        self._connection.add_termination_listener(self._terminated)
        if is_pooled(self._connection):
            await self._keep_session(settings)
        await self._ask(claim_outbox, self._connection, RelayKind.POLL)
        await self._ask(self._connection.add_listener, _CHANNEL, self._notified)
        joined = await self._ask(self._connection.fetchrow, _SQL["join"], _MEMBER)
        self._pid = joined["pid"]
        return self

    def _settings(self) -> dict[str, str]:
        lease = self._options.lease
        return {
            # A frozen relay is silent, and loses its locks; one whose machine is gone does not answer.
            "idle_session_timeout": f"{int(lease * 1000)}ms",
            "tcp_keepalives_idle": "3",
            "tcp_keepalives_interval": "2",
            "tcp_keepalives_count": "3",
            "client_connection_check_interval": "1s",
            # A lock of another session holds up this statement, and not the session with all others.
            "lock_timeout": f"{int(self._options.lock_wait * 1000)}ms",
            # A mark that a crash of the server takes back makes a duplicate, no more.
            "synchronous_commit": "off",
            # Without statistics, as of a table that was empty, the planner would read all of it for
            # each shard.
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            "enable_sort": "off",
            "jit": "off",
        }

    async def _keep_session(self, settings: Mapping[str, str]) -> None:
        """A pooler that gives us a session for as long as we want it passes on no settings of its start."""
        try:
            await require_session(
                self._url, "a relay, which holds locks,", name="steadfaust relay", timeout=self._options.lease
            )
        except (*UNAVAILABLE, PostgresError) as error:
            raise DatabaseUnavailable(f"the pooler before PostgreSQL cannot be used: {error!r}") from error
        for name, value in settings.items():
            await self._ask(self._live.fetchval, "SELECT set_config($1, $2, false)", name, value)

    async def close(self) -> None:
        """Give everything back."""
        self.owned.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            self.lost.set()
            try:
                await connection.close(timeout=1.0)
            except _ENDED:
                connection.terminate()

    def holds(self) -> bool:
        """Whether the locks are surely ours still: PostgreSQL has answered within half a lease."""
        return not self.lost.is_set() and time.monotonic() - self._answered < self._options.lease / 2

    async def require(self) -> None:
        """Make sure that the locks are ours, before something is written.

        Raises DatabaseUnavailable, StatementRefused.
        """
        if not self.holds():
            await self._ask(self._live.fetchval, "SELECT 1")

    async def balance(self, busy: set[int]) -> None:
        """Take or give back shards, so that each relay has a fair share; those that are busy stay for now.

        Raises StatementRefused, and DatabaseUnavailable also when the outbox was handed over: whoever opens
        again is told of that.
        """
        if await self._ask(outbox_owner, self._live) is not RelayKind.POLL:
            self._end()
        for row in await self._ask(self._live.fetch, _SQL["end_silent"], _MEMBER, self._options.lease):
            log.warning("silent_relay_ended", pid=row["pid"], ended=row["is_ended"])
        rows = await self._ask(self._live.fetch, _SQL["held"], _MEMBER, _SHARD)
        self.relays = max(1, sum(1 for row in rows if row["class"] == _MEMBER))
        held = {row["number"] for row in rows if row["class"] == _SHARD}
        share = -(-SHARDS // self.relays)
        if surplus := len(self.owned) - share:
            await self._adjust(surplus, held, busy)

    async def _adjust(self, surplus: int, held: set[int], busy: set[int]) -> None:
        if surplus > 0:
            given = sorted(self.owned - busy)[:surplus]
            self.owned.difference_update(given)  # before the lock is free: nothing of it is begun any more
            await self._ask(self._live.fetch, _SQL["release"], _SHARD, given)
            return
        free = [number for number in range(SHARDS) if number not in held]
        wanted = random.sample(free, min(-surplus, len(free)))
        taken = await self._ask(self._live.fetch, _SQL["take"], _SHARD, wanted)
        self.owned.update(row["number"] for row in taken)

    async def fetch(self, shards: Sequence[int]) -> list[OutboxRow]:
        """The next rows of these shards, in the order of the shards.

        Raises DatabaseUnavailable, StatementRefused.
        """
        options = self._options
        each = max(options.batch // max(len(shards), 1), options.batch // 8)
        rows = await self._ask(
            self._live.fetch,
            _SQL["fetch"],
            shards,
            each,
            options.batch,
            options.batch_bytes,
            options.last_retry,
            what="reading",
        )
        return [OutboxRow(*row) for row in rows]

    async def sleep(self) -> None:
        """Have the next one who publishes notify us. Raises DatabaseUnavailable, StatementRefused."""
        await self._ask(self._live.fetchval, _SQL["sleep"])

    async def published(self, positions: Sequence[int]) -> None:
        """Mark, delete or archive rows. Raises DatabaseUnavailable, StatementRefused."""
        await self._ask(self._live.execute, _SQL[self._options.after], positions, what="marking")

    async def published_unlocked(self, positions: Sequence[int]) -> set[int]:
        """The same, for rows that no session has locked; returns the others. Raises as `published` does."""
        left: set[int] = await self._ask(self._mark_unlocked, positions, what="marking")
        return left

    async def _mark_unlocked(self, positions: Sequence[int]) -> set[int]:
        connection = self._live
        async with connection.transaction():
            ours = [row["position"] for row in await connection.fetch(_SQL["lock"], positions)]
            await connection.execute(_SQL[self._options.after], ours)
            return {row["position"] for row in await connection.fetch(_SQL["unmarked"], positions)}

    async def failed(self, position: int, why: str) -> None:
        """Note an attempt that was refused; the row's aggregate waits for the next. Raises
        DatabaseUnavailable, StatementRefused.
        """
        options = self._options
        await self._ask(
            self._live.execute,
            _SQL["fail"],
            position,
            why,
            options.first_retry,
            options.last_retry,
            what="marking",
        )

    async def schemas(self, fingerprints: Iterable[str]) -> Mapping[str, str]:
        """The texts of schemas, as far as the outbox has them.

        Raises DatabaseUnavailable, StatementRefused.
        """
        rows = await self._ask(self._live.fetch, _SQL["schemas"], list(fingerprints))
        return {row["fingerprint"]: row["schema"] for row in rows}

    @property
    def _live(self) -> Connection:
        if self._connection is None or self.lost.is_set():
            raise DatabaseUnavailable("the relay's session with PostgreSQL has ended: it opens another one")
        return self._connection

    async def _ask(self, call: Callable[..., Any], *arguments: Any, what: str = "a statement") -> Any:
        """The answer. Raises DatabaseUnavailable when the session has ended, and StatementRefused, with who
        holds the lock, when it goes on.
        """
        async with self._turn:  # a connection does one thing at a time
            self._holder = ""
            try:
                async with self._told():
                    answer = await call(*arguments)
            except QueryCanceledError as error:
                raise self._refused(what, error) from error
            except (*_ENDED, DatabaseUnavailable) as error:
                self._end()
                raise DatabaseUnavailable(
                    f"the relay's session with PostgreSQL has ended: {error!r}"
                ) from error
            except PostgresError as error:
                raise self._refused(what, error) from error
            self._answered = time.monotonic()
            return answer

    def _told(self) -> AbstractAsyncContextManager[None]:
        def hold(who: str) -> None:
            self._holder = who

        if not self._pid:
            return nullcontext()
        return lock_wait_told(self._url, self._pid, hold, after=self._options.lock_wait / 2)

    def _refused(self, what: str, error: PostgresError) -> StatementRefused:
        self._answered = time.monotonic()
        why = f"{what} waits for {self._holder}: " if self._holder else f"{what} is refused: "
        return StatementRefused(f"{why}{error}{advice(error)}")

    def _end(self) -> None:
        self.owned.clear()
        if not self.lost.is_set():
            self.lost.set()
            if self._connection is not None:
                self._connection.terminate()
            self._wake()

    def _terminated(self, _: Any) -> None:
        self._end()

    def _notified(self, *_: Any) -> None:
        self._wake()
