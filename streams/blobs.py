"""What a claim check needs from an object store. The adapter is `streams.s3`, the fake is in
`streams.testing.blobs`; both pass the contract suite in `tests/contract`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol


class Blob(NamedTuple):
    """An object as the store lists it. `size` in bytes; `modified` in seconds since the epoch, whole ones."""

    name: str
    size: int
    modified: float


class Blobs(Protocol):
    """Objects of one bucket, by name. Every method raises BlobsUnavailable, which is transient, when the
    store does not answer in time, answers that it cannot, or refuses for a reason that an operator can mend.
    """

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        """Write an object; one that was there by this name is replaced at once, never half.

        It is replaced even by the same bytes: then it counts as new, and a sweeper leaves it alone.
        """

    async def get(self, name: str, *, at_most: int | None = None) -> bytes:
        """Its bytes; of more than `at_most` only the first so many.

        Raises BlobMissing.
        """

    async def head(self, name: str) -> Blob | None:
        """What the store knows of it; None when there is none."""

    def scan(self, prefix: str, *, older_than: float | None = None) -> AsyncIterator[Blob]:
        """Objects whose names begin with the prefix, in the order of their names as UTF-8; only those
        modified before `older_than`, in seconds since the epoch, when it is given.
        """

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; names that the store does not have are no error."""

    async def close(self) -> None:
        """Let go of threads and connections; what is under way may end."""
