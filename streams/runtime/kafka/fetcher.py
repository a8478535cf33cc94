"""Fetches what a reader reads from the brokers that lead it: from each of them again once all that it has
sent was taken, so that what lies here untaken is bounded by one answer of each.

Not aiokafka's fetcher, which decodes and keeps books for each partition each time, takes a fetch that was
cancelled for its own end (aiokafka #983), and fetches a part of the partitions while others are not taken.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from math import inf
from time import monotonic
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, TopicAuthorizationFailedError, for_code

from streams.ports import TP, Batch, Record
from streams.runtime.kafka.fetch_sessions import (
    OUT_OF_RANGE,
    UNKNOWN,
    Answer,
    Bounds,
    FetchSession,
    Found,
    fetch,
)
from streams.runtime.kafka.partition_records import FetchedRecords, IsolatingRecords, Isolation

#: Until it is tried again what did not work, in seconds.
_PAUSE = 0.1
#: Bytes of an answer that brings little, and how long a reader rests after one, in seconds.
_LITTLE = 64 << 10
_REST, _LONGEST_REST = 0.01, 0.02
_READ_COMMITTED = 1
#: As brokers number the leader of a partition that has none.
_NONE = -1


class Place:
    """How far a partition is read.

    Attributes:
        position: the offset that the next record is taken from.
        end, stable: where its log and what is decided of it end, by the last answer; None: none came yet.
    """

    __slots__ = ("_records", "end", "position", "stable", "tp")

    def __init__(self, tp: TP, position: int) -> None:
        self.tp = tp
        self.position = position
        self.end: int | None = None
        self.stable: int | None = None
        self._records: Any = None

    def fill(self, found: Found, isolation: Isolation) -> None:
        """Have these records read from its position on."""
        records = FetchedRecords(found.data)
        self._records = IsolatingRecords(
            self.tp, records, found.aborted, self.position, None, None, isolation, _READ_COMMITTED
        )

    def take(self, most: int) -> tuple[list[Record], bool]:
        """The next records, and whether these were all that came. The position moves with them, and over what
        a reader does not get to see.
        """
        records = list(islice(self._records, most))
        self.position = self._records.next_fetch_offset
        return records, len(records) < most


class Leader:
    """What one broker leads of what is read, and the fetches from it."""

    def __init__(self, node: int) -> None:
        self.node = node
        #: When it has answered last, by the monotonic clock.
        self.answered = -inf
        self.begin()

    def begin(self) -> None:
        """From here on other partitions are read."""
        self.places: dict[TP, Place] = {}
        self.session = FetchSession()
        #: How many bytes of records have come with the last answer.
        self.brought = 0
        self.fetching: asyncio.Task[None] | None = None

    def rest(self) -> float:
        """Seconds until the next fetch after an answer that brought little: as long as the reader was busy
        with that, within bounds. A transaction ends in one partition after the other; the others come
        together then.
        """
        if not 0 < self.brought < _LITTLE:
            return 0.0
        return min(max(monotonic() - self.answered, _REST), _LONGEST_REST)


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
        self._lost: Place | None = None
        client.cluster.add_listener(self._lead)

    def begin(self, positions: Mapping[TP, int], topic_ids: Mapping[str, bytes]) -> None:
        """Fetch these partitions from these positions; by the ids of their topics where all are known. To be
        called when the last ones have ended.
        """
        self.places = {tp: Place(tp, offset) for tp, offset in positions.items()}
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
        self._error = self._lost = None
        begun = (self._seeking, *(leader.fetching for leader in self._leaders.values()))
        tasks = [task for task in begun if task is not None]
        self._seeking = None
        for leader in self._leaders.values():
            leader.begin()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            for connection in list(self._client._conns.values()):
                connection.close()

    def _lead(self, _: object = None) -> None:
        """Let each partition be fetched from the broker that leads it, as far as that is known now."""
        led: defaultdict[int, dict[TP, Place]] = defaultdict(dict)
        for tp, place in self.places.items():
            led[self._leader_of(tp)][tp] = place
        lack = led.pop(_NONE, None)
        for node, leader in self._leaders.items():
            leader.places = led.get(node, {})
        for node, places in led.items():
            leader = self._leaders.setdefault(node, Leader(node))
            leader.places = places
            if leader.fetching is None or leader.fetching.done():
                leader.fetching = self._task(self._fetch(leader))
        if lack and (self._seeking is None or self._seeking.done()):
            self._seeking = self._task(self._seek())

    def _leader_of(self, tp: TP) -> int:
        leader = self._client.cluster.leader_for_partition(tp)
        return _NONE if leader is None else int(leader)

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
        """Look for the leaders of what has none: the metadata's listener hears of them."""
        while any(self._leader_of(tp) == _NONE for tp in self.places):
            await self._client.force_metadata_update()
            await asyncio.sleep(_PAUSE)

    async def _fetch(self, leader: Leader) -> None:
        """Fetch from a broker while it leads anything. Its connections tell what a fetch fails of."""
        while leader.places:
            while not self._full.keys().isdisjoint(leader.places):
                self._emptied.clear()
                await self._emptied.wait()
            if (rest := leader.rest()) > 0:
                await asyncio.sleep(rest)
            wanted = {tp: place.position for tp, place in leader.places.items()}
            try:
                answer = await self._client.send(
                    leader.node, fetch(leader.session, wanted, self._bounds, self._ids)
                )
            except IncompatibleBrokerVersion:
                if self._ids is None:
                    raise
                self._ids = None
                leader.session.reset()
            except KafkaError:
                leader.session.reset()
                await asyncio.sleep(_PAUSE)
            else:
                leader.answered = monotonic()
                if not self._accept(leader, answer, wanted):
                    await self._client.force_metadata_update()
                    await asyncio.sleep(_PAUSE)

    def _accept(self, leader: Leader, answer: Answer, wanted: Mapping[TP, int]) -> bool:
        """Take in what was fetched. False: something was not, and is fetched again after a pause."""
        leader.session.answered(answer.session_id, answer.error)
        leader.brought = 0
        is_well = not answer.error
        for found in answer.found:
            name = self._names.get(found.topic)
            place = None if name is None else self.places.get(TP(name, found.partition))
            if name is None or place is None:
                continue
            (self.unknown.add if found.error in UNKNOWN else self.unknown.discard)(name)
            # Another broker may lead it meanwhile, and have sent it already.
            if place.tp in self._full or place.position != wanted.get(place.tp):
                continue
            if found.error:
                is_well = False
                self._note(place, found.error)
                continue
            place.end, place.stable = found.end, found.stable
            if found.data:
                leader.brought += len(found.data)
                place.fill(found, self._isolation)
                self._full[place.tp] = place
        if self._full:
            self._arrived.set()
        return is_well

    def _note(self, place: Place, code: int) -> None:
        """Keep for the reader what does not pass."""
        if code == OUT_OF_RANGE:
            self._lost = place
            self._arrived.set()
        elif for_code(code) is TopicAuthorizationFailedError:
            self._fail(TopicAuthorizationFailedError(place.tp.topic))

    def check(self) -> Place | None:
        """The place whose offset its log does not have, if there is one. Raises what has ended a fetch."""
        if self._error is not None:
            raise self._error
        return self._lost

    def take(self, most: int) -> list[Batch]:
        """What was fetched, `most` records at most."""
        batches: list[Batch] = []
        for tp, place in list(self._full.items()):
            before = place.position
            records, is_all = place.take(most)
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
        if self._full or self._error is not None or self._lost is not None:
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
        self._client.cluster.remove_listener(self._lead)
        await self.end()
        await self._client.close()
