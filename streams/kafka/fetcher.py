"""Fetches a reader's partitions from their leaders. A broker is asked again only after all records of its
last answer were taken, so at most one answer of each broker is in memory.

It replaces aiokafka's fetcher, which does work for every partition in every fetch, stops when one of its
fetches is cancelled (aiokafka #983), and fetches only some partitions while others still have records.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Any

from aiokafka.errors import (
    CorruptRecordException,
    IncompatibleBrokerVersion,
    KafkaError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
    for_code,
)

from streams.errors import LogCut, Lost
from streams.kafka.clients import INTERVAL, ThrottledLines, leader_of
from streams.kafka.fetch_sessions import (
    OUT_OF_RANGE,
    UNKNOWN,
    Answer,
    Bounds,
    Found,
    fetch,
)
from streams.kafka.fetch_sources import Leader, Place
from streams.kafka.partition_records import FetchedRecords, Isolation
from streams.ports import NO_EPOCH, NO_OFFSETS, TP, Batch

#: Seconds before a failed fetch is repeated.
_PAUSE = 0.1
#: Node id of a missing leader.
_NONE = -1
#: Error codes for a leader epoch that the client, or the broker, has not learned yet; aiokafka lacks them.
_FENCED_LEADER_EPOCH, _UNKNOWN_LEADER_EPOCH = 74, 75
#: Errors that are not logged: the leader has moved or is missing, and is looked up again.
_MOVES = {
    *UNKNOWN,
    LeaderNotAvailableError.errno,
    NotLeaderForPartitionError.errno,
    _FENCED_LEADER_EPOCH,
    _UNKNOWN_LEADER_EPOCH,
}

log = logging.getLogger(__name__)
log.addFilter(ThrottledLines(INTERVAL, logging.LogRecord.getMessage))


class Fetcher:
    """The fetches of one reader. `places` holds the partitions that it reads."""

    def __init__(self, client: Any, bounds: Bounds, isolation: Isolation) -> None:
        """`client` is a connected AIOKafkaClient, used for its connections and its metadata."""
        self._client = client
        self._bounds = bounds
        self._isolation = isolation
        self.places: dict[TP, Place] = {}
        #: Topics that a broker did not know in its last answer.
        self.unknown: set[str] = set()
        self._ids: Mapping[str, bytes] | None = None
        self._names: dict[str | bytes, str] = {}
        self._leaders: dict[int, Leader] = {}
        self._seeking: asyncio.Task[None] | None = None
        #: Partitions with records that were not taken yet, in order of arrival.
        self._full: dict[TP, Place] = {}
        self._arrived, self._emptied = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        #: Partitions that a broker refuses to serve (offset out of range, no access), with the error code.
        self._refused: dict[TP, int] = {}
        #: Partitions whose log lost records that were read already, with the offset where it diverges.
        self._cut: dict[TP, int] = {}
        self._is_open = True
        client.cluster.add_listener(self._lead)

    def begin(
        self,
        positions: Mapping[TP, int],
        topic_ids: Mapping[str, bytes],
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """Start to fetch these partitions from these positions. `epochs` are the leader epochs at the
        positions, as far as known. Topics are requested by id if all ids are known. Call `end` first.
        """
        self.places = {tp: Place(tp, offset, epochs.get(tp, NO_EPOCH)) for tp, offset in positions.items()}
        topics = {tp.topic for tp in positions}
        self._ids = topic_ids if topics <= topic_ids.keys() else None
        self._names = {topic: topic for topic in topics} | {topic_ids[each]: each for each in self._ids or ()}
        self.unknown.clear()
        self._lead()

    async def end(self) -> None:
        """Stop all fetches. Closes the connections if a task was running: a broker answers in order, so the
        next request on a connection would wait until the broker answers the old fetch.
        """
        self.places = {}
        self._full.clear()
        begun = (self._seeking, *(leader.fetching for leader in self._leaders.values()))
        tasks = [task for task in begun if task is not None]
        self._seeking = None
        for leader in self._leaders.values():
            leader.begin()
        for task in tasks:
            task.cancel()
        if tasks:
            try:
                await asyncio.wait(tasks)
            finally:
                for connection in list(self._client._conns.values()):
                    connection.close()
        self._error = None
        self._refused.clear()
        self._cut.clear()

    def _lead(self, _: object = None) -> None:
        """Assign each partition to its leader, as far as known, and start the fetches."""
        led: defaultdict[int, dict[TP, Place]] = defaultdict(dict)
        for tp, place in self.places.items():
            led[leader_of(self._client, tp)][tp] = place
        lack = led.pop(_NONE, None)
        for leader in self._leaders.values():
            if leader.node not in led:
                leader.places = {}
        for node, places in led.items():
            leader = self._leaders.setdefault(node, Leader(node))
            leader.lead(places)
            if leader.fetching is None or leader.fetching.done():
                leader.fetching = self._task(self._fetch(leader))
        if lack and (self._seeking is None or self._seeking.done()):
            self._seeking = self._task(self._seek())

    def _task(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._arrived.set()

    async def _seek(self) -> None:
        """Request metadata until each partition has a leader. aiokafka calls `_lead` after each update."""
        while any(leader_of(self._client, tp) == _NONE for tp in self.places):
            self._client.force_metadata_update()
            await asyncio.sleep(_PAUSE)

    async def _fetch(self, leader: Leader) -> None:
        """Fetch from a broker as long as it leads any partition."""
        while leader.places:
            if not self._full.keys().isdisjoint(leader.places):
                self._emptied.clear()
                await self._emptied.wait()
                continue
            if (rest := leader.rest()) > 0:
                await asyncio.sleep(rest)
            wanted = {tp: place.position for tp, place in leader.places.items()}
            epochs = {tp: place.epoch for tp, place in leader.places.items()}
            ids = None if leader.by_name else self._ids
            try:
                answer = await self._client.send(
                    leader.node, fetch(leader.session, wanted, self._bounds, ids, epochs)
                )
            except IncompatibleBrokerVersion:
                if ids is None:
                    raise
                leader.by_name = True
                leader.session.reset()
            except KafkaError as error:
                log.warning("A fetch from broker %s failed: %r. It is repeated.", leader.node, error)
                leader.session.reset()
                await asyncio.sleep(_PAUSE)
            else:
                if self._accept(leader, answer, wanted):
                    leader.answered = monotonic()
                else:
                    self._client.force_metadata_update()
                    await asyncio.sleep(_PAUSE)

    def _accept(self, leader: Leader, answer: Answer, wanted: Mapping[TP, int]) -> bool:
        """Store what was fetched. Returns False if a partition failed; the next fetch waits for a moment."""
        leader.session.answered(answer.session_id, answer.error)
        leader.brought = 0
        is_well = not answer.error
        unknown: set[str] = set()
        known: set[str] = set()
        for found in answer.found:
            name = self._names.get(found.topic, "")
            place = self.places.get(TP(name, found.partition))
            if place is None:
                continue
            (unknown if found.error in UNKNOWN else known).add(name)
            is_well &= not found.error
            # Another broker may have become its leader, and have sent these records already.
            if place.tp in self._full or place.position != wanted.get(place.tp):
                continue
            if found.error:
                self._note(leader, place, found.error)
                continue
            self._refused.pop(place.tp, None)
            self._cut.pop(place.tp, None)
            if found.diverges is not None:
                is_well = False
                self._diverge(leader, place, *found.diverges)
                continue
            place.end, place.stable = found.end, found.stable
            if found.data:
                leader.brought += len(found.data)
                leader.let_others_first(place.tp)
                is_well &= self._fill(place, found)
        self.unknown = (self.unknown - known) | unknown
        if self._full:
            self._arrived.set()
        return is_well

    def _diverge(self, leader: Leader, place: Place, epoch: int, end: int) -> None:
        """Handle a log that lacks the epoch of what was read, or in which that epoch ends earlier. If `end`
        is before the position, records that were read are lost. Otherwise only later records are lost, and
        the reader continues with the log's epoch.
        """
        if end < place.position:
            self._cut[place.tp] = end
            self._arrived.set()
            return
        place.epoch = epoch
        leader.session.reset()  # within a session, a changed epoch alone is not sent

    def _fill(self, place: Place, found: Found) -> bool:
        records = FetchedRecords(found.data)
        if records.has_next():
            place.fill(records, found.aborted, self._isolation)
            self._full[place.tp] = place
            return True
        (topic, number), size = place.tp, len(found.data)
        why = f"the record batch at offset {place.position} is longer than the {size} bytes that came"
        self._fail(CorruptRecordException(f"{topic}[{number}]: {why}: it cannot be read"))
        return False

    def _note(self, leader: Leader, place: Place, code: int) -> None:
        """Keep an error that `check` raises, or log it, unless the leader has just moved."""
        error, (name, number) = for_code(code), place.tp
        if code == OUT_OF_RANGE or error is TopicAuthorizationFailedError:
            self._refused[place.tp] = code
            self._arrived.set()
        elif code not in _MOVES:
            where = (name, number, place.position, leader.node)
            log.warning("%s[%s] from offset %s is not fetched from broker %s: %s", *where, error.__name__)

    def check(self) -> Place | None:
        """A partition for which a broker answered "offset out of range", once for each such answer, or None.

        Raises the error that ended a fetch, LogCut, or TopicAuthorizationFailedError.
        """
        if self._error is not None:
            raise self._error
        if self._cut:
            cut, self._cut = self._cut, {}
            raise LogCut(Lost(*tp, self.places[tp].position, at) for tp, at in cut.items())
        if not self._refused:
            return None
        tp, code = self._refused.popitem()
        if code != OUT_OF_RANGE:
            raise TopicAuthorizationFailedError(tp.topic)
        return self.places[tp]

    def take(self, most: int) -> list[Batch]:
        """At most `most` fetched records, in batches."""
        batches: list[Batch] = []
        for tp, place in list(self._full.items()):
            before = place.position
            try:
                records, is_all = place.take(most)
            except Exception:
                del self._full[tp]
                self._emptied.set()
                if batches:  # the partition is fetched again, and raises then
                    return batches
                raise
            if is_all:
                del self._full[tp]
                self._emptied.set()
            if place.position != before:
                batches.append(Batch(tp, records, place.position))
            most -= len(records)
            if most <= 0:
                break
        return batches

    async def wait(self, seconds: float) -> None:
        """Wait up to `seconds` until records were fetched, or `check` has an error to raise."""
        self._arrived.clear()
        if self._full or self._refused or self._cut or self._error is not None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return

    def silence(self) -> float:
        """Seconds since the last answer of the broker that has been silent longest. Infinite if nothing is
        read, a leader has never answered, or a partition has no known leader.
        """
        led = sum(len(leader.places) for leader in self._leaders.values())
        answered = [leader.answered for leader in self._leaders.values() if leader.places]
        if not self.places:
            return inf
        return inf if led < len(self.places) else monotonic() - min(answered)

    async def close(self) -> None:
        """Stop all fetches and close the connections."""
        if self._is_open:
            self._is_open = False
            self._client.cluster.remove_listener(self._lead)
        try:
            await self.end()
        finally:
            await self._client.close()
