"""Which objects messages refer to: a row for each, in the lane that read or wrote the message (rule 18).

The sweeper deletes what no row names, so a row stays while anything may follow the reference: the message in
its topic, a repetition of it, a timer, a waiting row, a dead letter. Each of these writes the row anew with
its own time, and so does housekeeping for what still waits; a row is old when all of them have gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from streams.changes import CLAIMS, MESSAGES, Change
from streams.claim_check import DATAREF, PREFIX, BadReference, claim_in
from streams.ports import Store
from streams.staging import Overlay
from streams.waiting import read_message

#: Rows looked at in one step: a few milliseconds.
STEP = 200
#: From one round over all rows to the next, in seconds.
PAUSE = 600.0

_DATAREF = DATAREF.encode()


def reference(name: str, needed: float) -> Change:
    """The row of an object, which is needed at a time, in epoch seconds: its retention begins there."""
    return Change(CLAIMS, name.encode(), int(needed * 1000).to_bytes(8, "big"))


def reference_in(headers: Mapping[str, bytes], bucket: str, now: float) -> Change | None:
    """The row for what a message's headers refer to; None when that is nothing of ours to keep."""
    try:
        claim = claim_in(headers)
    except BadReference:
        return None
    if claim is None or claim.bucket != bucket or not claim.name.startswith(PREFIX):
        return None
    return reference(claim.name, now)


class References:
    """Housekeeping for the rows of a lane, in bounded steps: a round goes first over what waits and makes
    its rows new, then over all rows and removes the old ones. So none of what waits is old when it comes up.

    Args:
        store: the lane's.
        overlay: what is staged and not in the store yet.
        bucket: where our objects are.
        retention: how long a row is kept from the time that it says, in seconds.
    """

    def __init__(self, store: Store, overlay: Overlay, bucket: str, retention: float) -> None:
        self.removed = 0
        self._store = store
        self._overlay = overlay
        self._bucket = bucket
        self._retention = retention
        self._round: Iterator[list[tuple[int, Change]]] = iter(())
        self._next = 0.0

    def step(self, now: float) -> dict[int, list[Change]]:
        """Do a little at `now`, epoch seconds; returns changes to stage, by partition."""
        if now < self._next:
            return {}
        found = next(self._round, None)
        if found is None:
            self._next, self._round = now + PAUSE, self._begin(now)
            return {}
        changes: dict[int, list[Change]] = {}
        for partition, change in found:
            changes.setdefault(partition, []).append(change)
            self.removed += change.value is None
        return changes

    def _begin(self, now: float) -> Iterator[list[tuple[int, Change]]]:
        for page in self._pages(MESSAGES):
            yield [found for local, data in page if (found := self._renewed(local, data, now)) is not None]
        for page in self._pages(CLAIMS):
            yield [
                (int.from_bytes(local[:2], "big"), Change(CLAIMS, local[2:], None))
                for local, time in page
                if _seconds(time) < now - self._retention and self._overlay.get(CLAIMS, local) is None
            ]

    def _pages(self, table: str) -> Iterator[list[tuple[bytes, bytes]]]:
        start = b""
        while page := list(islice(self._store.scan(table, start=start), STEP)):
            yield page
            start = page[-1][0] + b"\0"

    def _renewed(self, local: bytes, data: bytes, now: float) -> tuple[int, Change] | None:
        """The row for a message that waits, if it needs to be written again."""
        if _DATAREF not in data:
            return None
        change = reference_in(dict(read_message(data).headers), self._bucket, now)
        if change is None:
            return None
        key = local[:2] + change.key
        staged = self._overlay.get(CLAIMS, key)
        time = self._store.get(CLAIMS, key) if staged is None else staged.value
        if time is not None and _seconds(time) > now - self._retention / 2:
            return None
        return int.from_bytes(local[:2], "big"), change


def _seconds(time: bytes) -> float:
    return int.from_bytes(time, "big") / 1000
