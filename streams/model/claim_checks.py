"""Checking payloads in and out: concurrently, within a bound in bytes, each object at most once at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from streams.model.claim import (
    AVRO,
    DATAREF,
    DEFAULT_THRESHOLD,
    PREFIX,
    BadReference,
    Claim,
    claim_in,
    claim_of,
    is_due,
    verify,
)
from streams.ports import Blob, Blobs
from streams.units import MIB

#: Bytes that are hashed faster than a thread starts to.
_SMALL = 128 * 1024


@dataclass(slots=True)
class ClaimCounters:
    """Counts of payloads checked in and out, for pages and metrics. `hits` came from the cache, `shared` from
    a fetch that was under way.
    """

    checked_in: int = 0
    bytes_in: int = 0
    checked_out: int = 0
    bytes_out: int = 0
    hits: int = 0
    shared: int = 0


@dataclass(slots=True)
class _Fetch:
    """A download that is under way, and how many wait for it."""

    task: asyncio.Task[bytes]
    waiters: int = 0


class ClaimChecks:
    """The claim checks of a worker; its lanes share one.

    Args:
        blobs: the object store.
        bucket: its bucket; a reference to another one is refused, from any sender.
        threshold: bytes of a payload that still travels in its record.
        max_in_flight_bytes: of uploads and downloads under way, over all callers; and as much again of
            payloads in the hands of those who hold them by `held`.
        cache_bytes: of payloads kept for the next handler, or attempt, that asks for them.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        bucket: str,
        threshold: int = DEFAULT_THRESHOLD,
        max_in_flight_bytes: int = 64 * MIB,
        cache_bytes: int = 32 * MIB,
    ) -> None:
        self.bucket = bucket
        self.threshold = threshold
        self.counters = ClaimCounters()
        self.in_flight = BytesInFlight(max_in_flight_bytes)
        #: Payloads on their way to a handler, in its hands, or on their way from it. A holder of these
        #: may wait for a transfer, never the other way round.
        self.held = BytesInFlight(max_in_flight_bytes)
        self.cache = BytesCache(cache_bytes)
        self._blobs = blobs
        self._fetches: dict[Claim, _Fetch] = {}

    def is_due(self, payload: int, rest: int, *, limit: int, binary: bool = False) -> bool:
        """Whether a payload is to be checked in; see `claim_check.is_due`."""
        return is_due(payload, rest, limit=limit, threshold=self.threshold, binary=binary)

    def claim(self, message_type: str, message_id: str, data: bytes, content_type: str = AVRO) -> Claim:
        """The claim for a payload; nothing is written yet, so that it can be staged."""
        return claim_of(self.bucket, message_type, message_id, data, content_type)

    async def check_in(self, claim: Claim, data: bytes) -> None:
        """Write the payload that the claim was made for. To be done before the commit that refers to it.

        It is written even if it is there: an orphan of an earlier attempt becomes new, so that the sweeper
        does not take it while the commit is under way.

        Raises:
            BlobsUnavailable: transient; whether it was written is unknown, and does not matter.
        """
        async with self.in_flight.of(len(data)):
            await self._blobs.put(claim.name, data, claim.content_type)
        self.counters.checked_in += 1
        self.counters.bytes_in += len(data)

    async def check_in_all(self, payloads: Sequence[tuple[Claim, bytes]]) -> None:
        """Write several, side by side. None is under way any more when this ends or raises, as `check_in`."""
        written = await asyncio.gather(*(self.check_in(*each) for each in payloads), return_exceptions=True)
        for error in written:
            if error is not None:
                raise error

    async def check_out(self, headers: Mapping[str, bytes]) -> bytes:
        """The payload that a message with these headers refers to, verified.

        Raises:
            BadReference: permanent; there is none, or it does not read, or leads out of our bucket.
            BlobMissing, BlobAltered: permanent; the message names the object.
            BlobsUnavailable: transient.
        """
        claim = claim_in(headers)
        if claim is None:
            raise BadReference(f"the message has no header {DATAREF}: its payload is its value")
        self._require_ours(claim)
        data = self.cache.get(claim)
        if data is not None:
            self.counters.hits += 1
        else:
            data = await self._fetched(claim)
        self.counters.checked_out += 1
        self.counters.bytes_out += len(data)
        return data

    async def look(self, claim: Claim) -> Blob | None:
        """The object store's entry for a payload; None: it is not there. Raises BadReference or
        BlobsUnavailable.
        """
        self._require_ours(claim)
        return await self._blobs.head(claim.name)

    def _require_ours(self, claim: Claim) -> None:
        if claim.bucket != self.bucket or not claim.name.startswith(PREFIX):
            raise BadReference(
                f"{claim.reference} is not ours to read: payloads are below s3://{self.bucket}/{PREFIX}"
            )

    async def _fetched(self, claim: Claim) -> bytes:
        """Wait for the one download of this object; the last who waits no more ends it."""
        fetch = self._fetches.get(claim)
        if fetch is None:
            fetch = self._fetches[claim] = _Fetch(asyncio.create_task(self._fetch(claim)))
        else:
            self.counters.shared += 1
        fetch.waiters += 1
        try:
            return await asyncio.shield(fetch.task)
        finally:
            fetch.waiters -= 1
            # A newer fetch may have its place already: after an error, or when this one was ended.
            if fetch.waiters == 0 or fetch.task.done():
                fetch.task.cancel()
                if self._fetches.get(claim) is fetch:
                    del self._fetches[claim]

    async def _fetch(self, claim: Claim) -> bytes:
        async with self.in_flight.of(claim.size):
            data = await self._blobs.get(claim.name, at_most=claim.size + 1)
            if claim.size > _SMALL:
                await asyncio.to_thread(verify, claim, data)
            else:
                verify(claim, data)
        self.cache.put(claim, data)
        return data


#: What a cached payload takes beside its bytes: its key, of which the longest are names of objects, and
#: objects of Python.
OVERHEAD = 2048


class _Waiter(NamedTuple):
    amount: int
    turn: asyncio.Future[None]


class BytesInFlight:
    """At most `limit` bytes at a time over all who share it; first come, first served.

    What is larger than the limit counts as all of it, so that it goes alone instead of waiting for ever. A
    large one that waits lets none behind it pass, so that it does not wait for ever either.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def waiters(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        """Hold so many bytes for the length of an `async with`."""
        amount = min(size, self.limit)
        await self._acquire(amount)
        try:
            yield
        finally:
            self._release(amount)

    async def _acquire(self, amount: int) -> None:
        if not self._waiting and self.held + amount <= self.limit:
            self.held += amount
            return
        waiter = _Waiter(amount, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._wake()  # it may have been the large one that held back the others
            else:
                self._release(amount)  # its turn came together with the cancellation
            raise

    def _release(self, amount: int) -> None:
        self.held -= amount
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.held + self._waiting[0].amount <= self.limit:
            waiter = self._waiting.popleft()
            self.held += waiter.amount
            if not waiter.turn.done():
                waiter.turn.set_result(None)


class BytesCache(LRUCache[Hashable, bytes]):
    """Byte strings by key, at most `limit` bytes of them; those used longest ago go first. Each counts
    OVERHEAD bytes more than it has, so that many small ones are bounded too.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, getsizeof=_counted)

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep the bytes, unless they alone are over the limit."""
        if _counted(data) <= self.maxsize:
            self[key] = data
        else:
            self.pop(key, None)


def _counted(data: bytes) -> int:
    return len(data) + OVERHEAD
