"""An object store in memory that tests can make unavailable, slow, lossy or corrupt."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from streams.errors import BlobArchived, BlobMissing, BlobsUnavailable
from streams.ports import Blob


@dataclass(slots=True)
class _Object:
    data: bytes
    content_type: str
    modified: float


class MemoryBlobs:
    """A bucket in memory.

    Args:
        bucket: name of the bucket, for error texts.
        timeout: seconds after which a slow request fails.
        now: the store's clock, in epoch seconds.
        sleep: function with which a slow request waits.

    Attributes:
        down: whether every request fails.
        refuses: why every request is refused, such as "AccessDenied"; empty if none is.
        slow: seconds that a request takes.
        requests: number of calls of each method.
        faults: number of requests that met each fault: down, slow, missing, altered.
        most_at_once: largest number of concurrent requests so far.
    """

    def __init__(
        self,
        bucket: str = "event-payloads",
        *,
        timeout: float = 30.0,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.bucket = bucket
        self.down = False
        self.refuses = ""
        self.slow = 0.0
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.most_at_once = 0
        self._timeout = timeout
        self._now = now
        self._sleep = sleep
        self._at_once = 0
        self._objects: dict[str, _Object] = {}
        self._altered: set[str] = set()
        self._archived: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Names of the objects, sorted."""
        return sorted(self._objects)

    def content_type(self, name: str) -> str:
        """Content type with which the object was written."""
        return self._objects[name].content_type

    def lose(self, name: str) -> None:
        """Remove an object without a request, as if it were lost."""
        del self._objects[name]

    def archive(self, name: str, *, restored: bool = False) -> None:
        """Archive an object without a request, so that reads raise BlobArchived; `restored` reverts that."""
        (self._archived.discard if restored else self._archived.add)(name)

    def alter(self, name: str, data: bytes | None = None) -> None:
        """Replace an object's bytes without a request. Without `data`, the first byte changes."""
        found = self._objects[name]
        if data is None:
            data = bytes([found.data[0] ^ 1]) + found.data[1:] if found.data else b"?"
        found.data = data
        self._altered.add(name)

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        """Write an object."""
        await self._request("put")
        self._objects[name] = _Object(bytes(data), content_type, float(int(self._now())))
        self._altered.discard(name)

    async def get(self, name: str, *, at_most: int | None = None) -> bytes:
        """An object's bytes, or only the first `at_most`. Raises BlobMissing or BlobArchived."""
        await self._request("get")
        found = self._objects.get(name)
        if found is None:
            self.faults["missing"] += 1
            raise BlobMissing(f"s3://{self.bucket}/{name} is not there: it was deleted, or never written")
        if name in self._archived:
            raise BlobArchived(f"s3://{self.bucket}/{name} is archived: restore it, then replay this message")
        self.faults["altered"] += name in self._altered
        return found.data[:at_most]

    async def head(self, name: str) -> Blob | None:
        """Name, size and time of an object; None if it does not exist."""
        await self._request("head")
        found = self._objects.get(name)
        return None if found is None else Blob(name, len(found.data), found.modified)

    async def scan(self, prefix: str, *, older_than: float | None = None) -> AsyncIterator[Blob]:
        """Objects whose names begin with `prefix`, sorted by name. With `older_than` (epoch seconds), only
        those written before that time.
        """
        await self._request("scan")
        for name in sorted(self._objects, key=str.encode):
            found = self._objects.get(name)  # None if it was deleted during the scan
            if found is None or not name.startswith(prefix):
                continue
            if older_than is None or found.modified < older_than:
                yield Blob(name, len(found.data), found.modified)

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects."""
        await self._request("delete")
        for name in names:
            self._objects.pop(name, None)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def _request(self, method: str) -> None:
        self.requests[method] += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.slow:
                self.faults["slow"] += 1
            await self._sleep(min(self.slow, self._timeout))
            if self.slow >= self._timeout:
                raise BlobsUnavailable(f"cannot {method}: no answer within {self._timeout:g} s")
            if self.refuses:
                cause = f"bucket {self.bucket}: {self.refuses}"
                what = {"get": "read", "put": "write"}.get(method, method)
                raise BlobsUnavailable(f"cannot {what} an object in {cause}", cause=cause)
            if self.down:
                self.faults["down"] += 1
                raise BlobsUnavailable(f"cannot {method}: the store is down, as a test wants it")
        finally:
            self._at_once -= 1
