"""Fetches what a reader reads from the brokers that lead it: from each of them again once all that it has
sent was taken, so that what lies here untaken is bounded by one answer of each.

Not aiokafka's fetcher, which decodes and keeps books for each partition each time, takes a fetch that was
cancelled for its own end (aiokafka #983), and fetches a part of the partitions while others are not taken.
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

#: Until it is tried again what did not work, in seconds.
_PAUSE = 0.1
#: As brokers number the leader of a partition that has none.
_NONE = -1
#: As the broker says that it, or the client, has the leader of before; aiokafka has no names for these.
_FENCED_LEADER_EPOCH, _UNKNOWN_LEADER_EPOCH = 74, 75
#: What is not worth a line: another broker leads it, or none, which is looked for.
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
    """The fetches of one reader. `places` has what it reads."""

    def __init__(self, client: Any, bounds: Bounds, isolation: Isolation) -> None:
        """`client` is aiokafka's, connected: connections, and what it knows of leaders."""
        self._client = client
        self._bounds = bounds
        self._isolation = isolation
        self.places: dict[TP, Place] = {}
        #: Topics that were unknown to a broker in its last answer.
        self.unknown: set[str] = set()
        self._ids: Mapping[str, bytes] | None = None
        self._names: dict[str | bytes, str] = {}
        self._leaders: dict[int, Leader] = {}
        self._seeking: asyncio.Task[None] | None = None
        #: Places with records that were not taken yet, in the order in which they came.
        self._full: dict[TP, Place] = {}
        self._arrived, self._emptied = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        #: Places that brokers refuse to let us read, for a reason that does not pass, with the code of that.
        self._refused: dict[TP, int] = {}
        #: Places of which records were read that their logs have lost, with where those go on otherwise.
        self._cut: dict[TP, int] = {}
        self._is_open = True
        client.cluster.add_listener(self._lead)

    def begin(
        self,
        positions: Mapping[TP, int],
        topic_ids: Mapping[str, bytes],
        epochs: Mapping[TP, int] = NO_OFFSETS,
    ) -> None:
        """Fetch these partitions from these positions, which have these leader epochs where that is known; by
        the ids of their topics where all are known. To be called when the last ones have ended.
        """
        self.places = {tp: Place(tp, offset, epochs.get(tp, NO_EPOCH)) for tp, offset in positions.items()}
        topics = {tp.topic for tp in positions}
        self._ids = topic_ids if topics <= topic_ids.keys() else None
        self._names = {topic: topic for topic in topics} | {topic_ids[each]: each for each in self._ids or ()}
        self.unknown.clear()
        self._lead()

    async def end(self) -> None:
        """End all fetches, with the connections that one is under way on: a broker answers in order, so the
        next one there would wait behind it for as long as that is held back.
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
        """Let each partition be fetched from the broker that leads it, as far as that is known now."""
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
        """Request metadata until each partition has a leader. `_lead` is called with each answer."""
        while any(leader_of(self._client, tp) == _NONE for tp in self.places):
            self._client.force_metadata_update()
            await asyncio.sleep(_PAUSE)

    async def _fetch(self, leader: Leader) -> None:
        """Fetch from a broker while it leads anything."""
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
        """Take in what was fetched. False: something was not, and is fetched again after a pause."""
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
            # Another broker may lead it meanwhile, and have sent it already.
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
        """A log does not have the epoch of what was read, or ends it before that. Where it has all offsets
        that were read, the epoch is that of records after them, which are lost.
        """
        if end < place.position:
            self._cut[place.tp] = end
            self._arrived.set()
            return
        place.epoch = epoch
        leader.session.reset()  # it names offsets that have changed, no epochs

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
        """Say what is wrong with a partition; what does not pass is kept for the reader."""
        error, (name, number) = for_code(code), place.tp
        if code == OUT_OF_RANGE or error is TopicAuthorizationFailedError:
            self._refused[place.tp] = code
            self._arrived.set()
        elif code not in _MOVES:
            where = (name, number, place.position, leader.node)
            log.warning("%s[%s] from offset %s is not fetched from broker %s: %s", *where, error.__name__)

    def check(self) -> Place | None:
        """A place whose offset its log does not have, if there is one: once for each answer that says so.
        Raises what has ended a fetch, LogCut and TopicAuthorizationFailedError.
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
        """What was fetched, `most` records at most."""
        batches: list[Batch] = []
        for tp, place in list(self._full.items()):
            before = place.position
            try:
                records, is_all = place.take(most)
            except Exception:
                del self._full[tp]
                self._emptied.set()
                if batches:  # it is fetched again, and raises then
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
        """Until something was fetched, or there is something to be raised."""
        self._arrived.clear()
        if self._full or self._refused or self._cut or self._error is not None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return

    def silence(self) -> float:
        """For how many seconds a broker that leads something of what is read has not answered: the longest;
        infinite where one never has, or a partition has no known leader.
        """
        led = sum(len(leader.places) for leader in self._leaders.values())
        answered = [leader.answered for leader in self._leaders.values() if leader.places]
        if not self.places:
            return inf
        return inf if led < len(self.places) else monotonic() - min(answered)

    async def close(self) -> None:
        """End all fetches, and let go of the connections."""
        if self._is_open:
            self._is_open = False
            self._client.cluster.remove_listener(self._lead)
        try:
            await self.end()
        finally:
            await self._client.close()
