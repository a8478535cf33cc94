"""The inbox: which messages were handled already, by (handler, ce_source, ce_id) (docs/adr/0006).

An entry is a changelog record, committed with the work that it stands for. Locally, entries are in time
buckets with one table each, so that expiry drops a table, at no cost for each id.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from streams.engine.staging.area import StagingArea
from streams.engine.staging.changes import Pair, Writes
from streams.engine.staging.keys import time_key
from streams.errors import SettingsError
from streams.ports import Store
from streams.units import DAY

#: Number of buckets in the retention. An id is kept for at least the retention, and at most 1.5 times that.
BUCKETS: Final = 2
_BUCKETS: Final = "_inbox-"


def check_retention(*, inbox: float, dead_letters: float, longest_retry: float) -> None:
    """Raises SettingsError if a replayed dead letter could outlive its inbox entry. All in seconds."""
    if inbox < dead_letters + longest_retry:
        raise SettingsError(
            f"inbox retention of {inbox / DAY:g} days is shorter than dead letters ({dead_letters / DAY:g})"
            f" plus the longest retry path ({longest_retry / DAY:g} days): a replay could be handled twice."
            " Raise inbox_retention or lower dead_letter_retention (STEADFAUST_INBOX_RETENTION_DAYS,"
            " STEADFAUST_DEAD_LETTER_RETENTION_DAYS, STEADFAUST_RETRY_DELAYS)."
        )


def inbox_entry(key: bytes, now_ms: int, note: bytes) -> Pair:
    """The entry that marks a message as handled, for `Entry.ids`. `note` is the outcome's, for people."""
    return entry_at(key, time_key(now_ms), note)


def entry_at(key: bytes, time: bytes, note: bytes) -> Pair:
    """An inbox entry with a time that `time_key` has encoded."""
    return key, time + note


def source_prefix(handler: bytes, source: bytes) -> bytes:
    """The prefix of the changelog keys of a handler's messages from a source."""
    return blake2b(handler + b"\0" + source, digest_size=8).digest()


class Inbox:
    """The inbox of a lane over its store. Entries that are not committed are in the staging area."""

    def __init__(self, store: Store, writes: Writes, retention: float) -> None:
        """`retention` is how long an id is kept at least, in seconds."""
        self._store = store
        self._writes = writes
        self._retention = retention
        self._prefixes: dict[tuple[bytes, bytes], bytes] = {}

    def prefix(self, handler: bytes, source: bytes) -> bytes:
        """The prefix of the changelog keys of a handler's messages from a source, as in `source_prefix`."""
        prefix = self._prefixes.get((handler, source))
        if prefix is None:
            # Sources are few, unless a client invents one for each message.
            if len(self._prefixes) > 10_000:
                self._prefixes.clear()
            prefix = self._prefixes[handler, source] = source_prefix(handler, source)
        return prefix

    def key(self, handler: bytes, source: bytes, message_id: bytes) -> bytes:
        """The changelog key of an entry. The id stays readable."""
        return self.prefix(handler, source) + message_id

    def take(self, staging: StagingArea, prefix: bytes, keys: Sequence[bytes], now: float) -> list[bool]:
        """Return which inbox keys are new, and claim those, so that they are not new again. `prefix` is their
        partition's prefix in local keys.
        """
        local, claimed = [prefix + key for key in keys], staging.claimed
        new = []
        for own, seen in zip(local, self.seen(local, now), strict=True):
            is_new = not seen and own not in claimed
            if is_new:
                claimed.add(own)
            new.append(is_new)
        return new

    def seen(self, keys: Sequence[bytes], now: float) -> list[bool]:
        """Return which local keys were committed before."""
        found = [False] * len(keys)
        for table in self._live(now):
            for i, value in enumerate(self._store.get_many(table, keys)):
                if value is not None:
                    found[i] = True
        return found

    @staticmethod
    def note_of(store: Store, local: bytes) -> bytes | None:
        """The note in a committed entry, by its local key; None: there is no such entry."""
        for table in store.tables():
            if table.startswith(_BUCKETS) and (value := store.get(table, local)) is not None:
                return value
        return None

    def expire(self, now: float) -> list[str]:
        """Drop buckets in which every entry is older than the retention. Returns their names."""
        oldest = self._writes.inbox_table(int((now - self._retention) * 1000))
        expired = [table for table in self._buckets() if table < oldest]
        for table in expired:
            self._store.drop(table)
        return expired

    def _live(self, now: float) -> list[str]:
        oldest = self._writes.inbox_table(int((now - self._retention) * 1000))
        return [table for table in self._buckets() if table >= oldest]

    def _buckets(self) -> list[str]:
        return sorted(table for table in self._store.tables() if table.startswith(_BUCKETS))


def bucket_length(retention: float) -> float:
    """Length of a time bucket in seconds, for a retention in seconds."""
    return retention / BUCKETS
