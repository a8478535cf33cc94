"""The polling relay."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress

import structlog

from streams.errors import ClusterUnavailable, SteadfaustError
from streams.ports import Faults
from streams.postgres.errors import DatabaseUnavailable, StatementRefused
from streams.postgres.outbox import OutboxRow
from streams.postgres.primary import Primary
from streams.postgres.relay.counts import RelayCounts
from streams.postgres.relay.marks import Marks
from streams.postgres.relay.options import RelayOptions
from streams.postgres.relay.publish_plan import plan, without
from streams.postgres.relay.publisher import Publisher
from streams.postgres.relay.refusals import PublishRefusals
from streams.postgres.relay.session import RelaySession
from streams.system import NoFaults

log = structlog.get_logger(__name__)

_FIRST_PAUSE = 0.1
#: An idle relay spends at most this part of its time on looking, as long as a look takes no longer than
#: usual.
_LOOKING = 0.1
_LONGEST_REST = 1.0


class Relay:
    """Publishes what its shards have, until it is stopped; several may run.

    Arguments:
        url: of the database.
        publisher: writes to Kafka.
        counts: what it did, for metrics and health.
        faults: what happens at the points `fetched`, `published`, `marked` and `refused`, for tests.
    """

    def __init__(
        self,
        url: str,
        publisher: Publisher,
        options: RelayOptions | None = None,
        *,
        counts: RelayCounts | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._url = url
        self._primary = Primary(url, "steadfaust relay")
        self._publisher = publisher
        self._options = options or RelayOptions()
        self.counts = counts or RelayCounts()
        self._faults = faults or NoFaults()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._announced: set[str] = set()
        self._busy: set[int] = set()
        self._turns: deque[int] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause = 0.0
        self._refusals = PublishRefusals(self.counts, self._stopping)
        self._marks = Marks(
            self.counts,
            self._refusals,
            self._stopping,
            self._faults,
            release=self._give_back,
            ended=self._look_at,
        )
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Relay until `stop`. An outage of PostgreSQL or Kafka is waited out, and a lock or missing right.

        Raises OutboxOwned when the outbox is change data capture's, or was handed over to it.
        """
        watching = asyncio.create_task(self._primary.run())
        watching.add_done_callback(self._look_at)
        try:
            while not self._stopping.is_set():
                try:
                    await self._session()
                except (DatabaseUnavailable, StatementRefused) as error:
                    self.counts.database_down(str(error))
                    log.warning("relay_without_database", error=str(error), action="tries again")
                    await self._back_off()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self.counts.stopped()
            await self._publisher.close()

    def stop(self) -> None:
        """End: what is under way is marked, if that takes no longer than it may."""
        self._stopping.set()
        self._wake.set()

    async def _session(self) -> None:
        session = RelaySession(self._url, self._options, self._wake.set, self._primary)
        balancing: asyncio.Task[None] | None = None
        try:
            await session.open()
            await session.balance(self._busy)
            self.counts.database_up()
            self._pause = 0.0
            log.info("relay_joined", relays=session.relays, shards=len(session.owned))
            balancing = asyncio.create_task(self._balance(session))
            balancing.add_done_callback(self._look_at)
            self._spawn(self._greet())
            await self._pump(session)
        finally:
            if balancing is not None:
                balancing.cancel()
                await asyncio.gather(balancing, return_exceptions=True)
            await self._settle(session)
            await session.close()
            self.counts.shares(0, 0)

    async def _balance(self, session: RelaySession) -> None:
        with suppress(DatabaseUnavailable):  # the pump finds the session lost, too, and tells of it
            while True:
                before = len(session.owned), session.relays
                try:
                    await session.balance(self._busy)
                except StatementRefused as error:
                    await self._refusals.wait_after("balancing", error)
                    continue
                self._refusals.over("balancing")
                self.counts.shares(len(session.owned), session.relays)
                if (len(session.owned), session.relays) != before:
                    log.info("relay_balanced", relays=session.relays, shards=len(session.owned))
                    self._wake.set()
                await asyncio.sleep(self._options.balance)

    async def _pump(self, session: RelaySession) -> None:
        """Begin batches while there are rows and room; else wait to be woken, and look now and then."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            if session.lost.is_set():
                raise DatabaseUnavailable("the relay's session with PostgreSQL has ended")
            if self._failure is not None:
                raise self._failure
            self._wake.clear()
            looked = loop.time()
            try:
                if await self._begin(session):
                    continue
                looked = loop.time()
                if len(self._tasks) < self._options.in_flight:
                    # Listen first, then look: a commit between the two is seen, or wakes us.
                    await session.sleep()
                    if await self._begin(session):
                        continue
            except StatementRefused as error:
                await self._refusals.wait_after("reading", error)
                continue
            self._refusals.over("reading")
            rest = min(max(self._options.poll, (loop.time() - looked) / _LOOKING), _LONGEST_REST)
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._wake.wait()

    async def _begin(self, session: RelaySession) -> bool:
        """Begin a batch of shards that have none under way; False when there is nothing, or no room."""
        if len(self._tasks) >= self._options.in_flight:
            return False
        free = self._next_turns(session.owned - self._busy)
        rows = await session.fetch(free) if free else []
        if not rows:
            return False
        shards = {row.shard for row in rows}
        # The last one may have more, so it has its turn among the first again.
        self._turns = deque(
            [s for s in self._turns if s not in shards] + [s for s in self._turns if s in shards]
        )
        self._busy |= shards
        self._spawn(self._relay(session, rows, shards))
        return True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _greet(self) -> None:
        """Connect to Kafka before the first row comes; health tells if it cannot be reached."""
        try:
            await self._publisher.announce({})
            self._kafka_answers()
        except SteadfaustError as error:
            self.counts.kafka_down(str(error))

    def _next_turns(self, free: set[int]) -> list[int]:
        self._turns.extend(sorted(free - set(self._turns)))
        return [shard for shard in self._turns if shard in free]

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look_at(task)
        self._wake.set()

    def _look_at(self, task: asyncio.Task[None]) -> None:
        """Let an unexpected error end the relay: the next round would meet it again."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._wake.set()

    async def _relay(self, session: RelaySession, rows: list[OutboxRow], shards: set[int]) -> None:
        try:
            await self._faults.reach("fetched")
            read = time.monotonic()
            known = [row for row in rows if self._marks.is_published(row)]
            fresh = [row for row in rows if not self._marks.is_published(row)]
            await self._mark(session, known, read, shards)
            await self._announce(session, fresh)
            await self._publish(session, fresh, read, shards)
            self._kafka_answers()
        except DatabaseUnavailable:
            session.lost.set()  # the pump tells of it
        except StatementRefused as error:
            await self._refusals.wait_after("publishing", error)
        except SteadfaustError as error:
            # Nothing is lost: what is not marked is read again, from its aggregate's first row on.
            self.counts.kafka_down(str(error))
            log.warning(
                "relay_without_kafka", error=str(error), rows=len(rows), action="publishes them again"
            )
            await self._back_off()
        else:
            self._refusals.over("publishing")
        finally:
            self._busy -= shards

    async def _announce(self, session: RelaySession, rows: Sequence[OutboxRow]) -> None:
        """Announce the schemas of these rows before the first message that is written with one."""
        new = {row.schema_fingerprint for row in rows} - self._announced
        if new:
            await self._publisher.announce(await session.schemas(new))
            self._announced |= new

    async def _publish(
        self, session: RelaySession, rows: list[OutboxRow], read: float, shards: set[int]
    ) -> None:
        """Publish those of these shards; one whose rows cannot all be marked is taken out of them."""
        again, waves = plan(rows)
        held: set[tuple[str, str]] = set()
        doubts = []
        for wave in waves:
            sent = [row for row in without(wave, held) if row.shard in shards]
            await session.require()
            written, suspects, doubt = await self._publisher.publish(sent)
            await self._faults.reach("published")
            await self._mark(session, written, read, shards)
            again += suspects
            if len(written) < len(sent):
                done = {row.position for row in written}
                held |= {row.aggregate for row in sent if row.position not in done}
            doubts += [doubt] if doubt else []
        if again:
            await self._isolate(session, again, read, shards)
        if doubts:
            raise ClusterUnavailable(doubts[0])

    async def _mark(
        self, session: RelaySession, written: list[OutboxRow], read: float, shards: set[int]
    ) -> None:
        """Mark rows, and take the shards of those that are left out of the batch's: they are insisted on."""
        shards -= await self._marks.mark(session, written, read)

    async def _isolate(
        self, session: RelaySession, rows: list[OutboxRow], read: float, shards: set[int]
    ) -> None:
        await session.require()
        written, refused = await self._publisher.isolate([row for row in rows if row.shard in shards])
        await self._mark(session, written, read, shards)
        for row, why in refused:
            if row.shard in shards:
                shards -= await self._marks.refuse(session, row, why)

    def _give_back(self, shards: set[int]) -> None:
        self._busy -= shards
        self._wake.set()

    def _kafka_answers(self) -> None:
        self._pause = 0.0
        self.counts.kafka_up()

    async def _back_off(self) -> None:
        """Wait before the next attempt, longer each time, and not as long as all others."""
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE), self._options.outage_pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause * random.uniform(0.5, 1.0)):
                await self._stopping.wait()

    async def _settle(self, session: RelaySession) -> None:
        """Let what is under way be marked, if the locks are ours; else stop writing at once."""
        if self._tasks and not session.lost.is_set():
            await asyncio.wait(self._tasks, timeout=self._options.stop_within)
        self._publisher.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._marks.settle(0.0 if session.lost.is_set() else self._options.lock_wait)
        self._busy.clear()
