"""The commit protocol: rows, inbox, messages and positions in one Kafka transaction, then the local store.

Nothing here retries or aborts. After any exception the lane discards the producer and everything staged, and
opens again from Kafka's state, because an error may leave the outcome unknown (docs/adr/0002).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from streams.engine.staging.area import StagingArea
from streams.engine.staging.changelog import Staged
from streams.engine.staging.keys import IDENTITY, POSITION, PRODUCERS
from streams.engine.waiting.timers import Timers
from streams.engine.way.changelog_ends import ChangelogEnds
from streams.engine.way.memory import LaneMemory
from streams.engine.way.sources import Sources
from streams.engine.way.spans import LaneSpans
from streams.errors import RecordRefused, Refused, TooLarge
from streams.model.envelope import record_size
from streams.model.layout import LANE
from streams.ports import TP, Faults, Note, Ports, Transactions

#: Kinds of rows that a lane writes for itself. No message makes them larger.
OF_THE_LANE = (POSITION, IDENTITY, PRODUCERS)
#: How long an idle lane waits before it commits positions that only markers have moved, in seconds.
IDLE_COMMIT = 30.0
#: The same, if they have moved over looped messages: until then those look like a backlog to others.
LOOPED_COMMIT = 0.5
#: How long a lane waits for messages before it commits first positions and changelog marks without any.
FIRST_COMMIT = 5.0
#: A lane rests REST_TIMES as long as its last transaction took, but at most LONGEST_REST seconds.
REST_TIMES, LONGEST_REST = 3.0, 0.1


def rest(spent: float, since: float, linger: float) -> float:
    """Seconds until the next transaction begins; 0 or less: at once.

    The duration of a transaction shows how busy the machine is: a few milliseconds when idle, a hundred and
    more when every lane commits as fast as it can. Most of its cost is per partition, whatever it contains,
    so when transactions take long, fewer and larger ones are better.

    Args:
        spent: seconds that the last transaction took.
        since: seconds since it ended. After an idle time this exceeds the rest, so the lane does not wait.
        linger: minimum wait in seconds.
    """
    return max(linger, min(max(spent, 0.0) * REST_TIMES, LONGEST_REST) - max(since, 0.0))


async def commit(
    producer: Transactions, staged: Staged, positions: Positions, faults: Faults
) -> Mapping[TP, int]:
    """Commit what is staged. Returns the end of each partition written to.

    Raises Fenced, OutcomeUnknown, RecordRefused, Refused or LogCut.
    """
    await faults.reach("staged")
    await producer.begin()
    await faults.reach("begun")
    # Concurrently: the records are on their way while the coordinator takes the offsets.
    ends, _ = await asyncio.gather(_send(producer, staged, faults), _offsets(producer, positions, faults))
    positions.check(ends)
    await producer.commit()
    await faults.reach("committed")
    return ends


async def _send(producer: Transactions, staged: Staged, faults: Faults) -> Mapping[TP, int]:
    ends = await producer.send(staged.records)
    await faults.reach("sent")
    return ends


async def _offsets(producer: Transactions, positions: Positions, faults: Faults) -> None:
    if positions.offsets:
        await producer.send_offsets(positions.offsets, positions.group, positions.notes)
    await faults.reach("offsets_sent")


class Positions:
    """The offsets that a transaction commits to the group: source positions, and ends of changelogs.

    Attributes:
        offsets, notes: the offsets with their notes.
        ends: expected ends of the changelogs.
    """

    def __init__(self, staged: Staged, group: str, sources: Sources, logs: ChangelogEnds) -> None:
        self.group = group
        self._logs = logs
        self.ends = logs.expected(staged.records)
        written, notes = logs.commits(self.ends)
        self.offsets = {**staged.offsets, **written}
        self.notes = {**{tp: Note(sources.epoch(tp)) for tp in staged.offsets}, **notes}

    def check(self, ends: Mapping[TP, int]) -> None:
        """Raise LogCut if brokers have written to a changelog below its expected end."""
        self._logs.check(self.ends, ends)


class Commits:
    """Commits what a lane has staged, and only then writes it to the local store.

    Expiry and the removal of stale index entries need no transaction, because they can be computed again.
    """

    def __init__(
        self,
        staging: StagingArea,
        timers: Timers,
        spans: LaneSpans | None,
        memory: LaneMemory,
        ports: Ports,
        sources: Sources,
        logs: ChangelogEnds,
    ) -> None:
        self._staging = staging
        self._timers = timers
        self._spans = spans
        self._app = staging.app
        self._memory = memory
        self._clock = ports.clock
        self._faults = ports.faults
        self._sources = sources
        self._logs = logs
        self._idle_until: float | None = None
        #: How long the last transaction took, and when it ended, in seconds.
        self._spent = self._ended = 0.0

    async def step(self, producer: Transactions) -> bool:
        """Commit once, as soon as there is something to commit. Returns False if there was nothing yet.

        Raises the errors of `commit`, and `LaneMemory.signals.error`, which a background task may have set.
        """
        signals, limit = self._memory.signals, self._memory.reopening.limit
        signals.work.clear()
        if signals.error is not None:
            raise signals.error
        order, options = self._staging.order, self._app.lane_options
        if not order.has_finished() and not await self._wait_for_work():
            return False
        if order.backlog < limit:
            wait = rest(self._spent, self._clock.now() - self._ended, options.linger)
            if wait > 0:
                await self._clock.sleep(wait)
        self._idle_until = None
        staged = order.take(limit, options.max_batch_bytes)
        positions = Positions(staged, self._app.layout.app_id, self._sources, self._logs)
        began = self._clock.now()
        try:
            with self._memory.measures.transaction(staged.messages):
                ends = await commit(producer, staged, positions, self._faults)
        except (RecordRefused, TooLarge) as error:
            if isinstance(error, RecordRefused) and self._is_of_the_lane(staged, error):
                raise Refused(
                    f"{error}. The topic does not even accept the lane's own position: raise the limit"
                ) from error
            raise self._blamed(staged, str(error)) from error
        self._logs.committed(positions.ends, ends)
        self._memory.refusals.committed()
        self._ended = self._clock.now()
        self._spent = self._ended - began
        self._staging.apply(staged, ends, began)
        self._timers.committed(staged)
        await self._faults.reach("applied")
        self._staging.forget(staged)
        order.committed()
        if self._spans is not None:
            self._spans.committed()
        return True

    def _is_of_the_lane(self, staged: Staged, error: RecordRefused) -> bool:
        """Whether the changelog refuses even the lane's own rows, so that no message is the cause."""
        if not error.limit or error.topic != self._app.layout.changelog(LANE):
            return False
        rows = (each for each in staged.changes.get(LANE, {}).values() if each.key[:1] in OF_THE_LANE)
        return any(record_size(each.key, each.value, ()) > error.limit for each in rows)

    def _blamed(self, staged: Staged, why: str) -> Refused | RecordRefused:
        """The error for a refused record. With several messages in the transaction the cause is unknown, so
        the next transactions are smaller.
        """
        if staged.handled > 1:
            return RecordRefused(why)
        if staged.last is not None and self._memory.refusals.blame(staged.last, why):
            return RecordRefused(why)
        return Refused(f"{why}. Dead-lettering a message would not help: raise the limit")

    async def _wait_for_work(self) -> bool:
        """Wait for work. Returns True if none came before the deadline, but positions have moved over
        markers, or first positions or changelog marks are not committed yet. A spurious wake-up does not
        extend the deadline.
        """
        order = self._staging.order
        if not order.has_advanced and not self._logs.has_news:
            self._idle_until = None
        else:
            wait = FIRST_COMMIT if order.has_first or self._logs.has_news else IDLE_COMMIT
            until = asyncio.get_running_loop().time() + (LOOPED_COMMIT if order.has_looped else wait)
            self._idle_until = until if self._idle_until is None else min(until, self._idle_until)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._idle_until):
                await self._memory.signals.work.wait()
                return False
        self._idle_until = None
        return True
