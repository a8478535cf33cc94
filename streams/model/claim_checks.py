"""Uploads and downloads of claim-check payloads, concurrently and with a limit in bytes. There is at most one
download of an object at a time.
"""

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

#: Up to this size in bytes, hashing is faster than starting a thread.
_SMALL = 128 * 1024


@dataclass(slots=True)
class ClaimCounters:
    """Counts of payloads checked in and out, for pages and metrics. `hits` counts payloads from the cache,
    `shared` those from a download that was already under way.
    """

    checked_in: int = 0
    bytes_in: int = 0
    checked_out: int = 0
    bytes_out: int = 0
    hits: int = 0
    shared: int = 0


@dataclass(slots=True)
class _Fetch:
    """A download that is under way, and the number of callers that wait for it."""

    task: asyncio.Task[bytes]
    waiters: int = 0


class ClaimChecks:
    """The claim checks of a worker, shared by its lanes.

    Args:
        blobs: the object store.
        bucket: the bucket for payloads. References to other buckets are refused.
        threshold: largest payload in bytes that stays in its record.
        max_in_flight_bytes: largest total of concurrent uploads and downloads. The limit for payloads that
            callers hold (`held`) has the same size.
        cache_bytes: size of the cache of payloads for further handlers and attempts.
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
        #: Limits the payloads that handlers have, are about to get, or have returned. To avoid deadlocks, a
        #: holder of these may wait for a transfer, but never the other way round.
        self.held = BytesInFlight(max_in_flight_bytes)
        self.cache = BytesCache(cache_bytes)
        self._blobs = blobs
        self._fetches: dict[Claim, _Fetch] = {}

    def is_due(self, payload: int, rest: int, *, limit: int, binary: bool = False) -> bool:
        """Whether a payload must be stored as an object; see `claim.is_due`."""
        return is_due(payload, rest, limit=limit, threshold=self.threshold, binary=binary)

    def claim(self, message_type: str, message_id: str, data: bytes, content_type: str = AVRO) -> Claim:
        """The claim for a payload. Nothing is written yet, so that the message can be staged first."""
        return claim_of(self.bucket, message_type, message_id, data, content_type)

    async def check_in(self, claim: Claim, data: bytes) -> None:
        """Write the payload of a claim. This must happen before the commit that refers to it.

        The object is written even if it exists. That renews an orphan of an earlier attempt, so that
        `steadfaust claims sweep` does not delete it during the commit.

        Raises:
            BlobsUnavailable: transient. The object may or may not have been written; either is harmless.
        """
        async with self.in_flight.of(len(data)):
            await self._blobs.put(claim.name, data, claim.content_type)
        self.counters.checked_in += 1
        self.counters.bytes_in += len(data)

    async def check_in_all(self, payloads: Sequence[tuple[Claim, bytes]]) -> None:
        """Write several payloads concurrently. Waits for all of them, even if one raises BlobsUnavailable."""
        written = await asyncio.gather(*(self.check_in(*each) for each in payloads), return_exceptions=True)
        for error in written:
            if error is not None:
                raise error

    async def check_out(self, headers: Mapping[str, bytes]) -> bytes:
        """The payload to which a message with these headers refers, after verification.

        Raises:
            BadReference: permanent; the reference is missing, malformed, or outside of this bucket.
            BlobMissing, BlobAltered: permanent; the error's text names the object.
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
        """The object store's entry for a payload; None if the object is missing. Raises BadReference or
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
        """Wait for the only download of this object. The last caller that stops waiting cancels it."""
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
            # A newer fetch may have replaced this one, after an error or a cancellation.
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


#: Memory that a cached payload takes besides its bytes: its key, which may be long, and Python objects.
OVERHEAD = 2048


class _Waiter(NamedTuple):
    amount: int
    turn: asyncio.Future[None]


class BytesInFlight:
    """Limits the bytes that all callers together hold at a time. First come, first served.

    A request over the limit counts as the whole limit, so that it runs alone instead of waiting forever.
    While a large request waits, later ones wait behind it, so that it cannot starve.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def waiters(self) -> int:
        """Number of waiting callers."""
        return len(self._waiting)

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes during an `async with` block."""
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
                self._wake()  # this may have been a large request that blocked the others
            else:
                self._release(amount)  # granted at the same time as the cancellation
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
    """An LRU cache of byte strings with at most `limit` bytes. Each entry counts OVERHEAD bytes more than its
    length, so that many small ones are limited, too.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, getsizeof=_counted)

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep the bytes, unless they alone exceed the limit."""
        if _counted(data) <= self.maxsize:
            self[key] = data
        else:
            self.pop(key, None)


def _counted(data: bytes) -> int:
    return len(data) + OVERHEAD
