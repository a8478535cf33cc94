"""Queues of a handler that wait for a schema: their messages cannot be decoded until it is announced."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from streams.errors import PermanentError, UnknownSchema
from streams.model.bound import BoundRoute

#: Seconds between checks whether schemas have been announced.
LOOK = 1.0
#: Maximum schemas in one check, because anyone can make up fingerprints.
MOST_LOOKED_AT = 1000
#: Maximum queues that `ready` returns.
MOST_READY = 200


class Awaited(NamedTuple):
    """A schema that messages wait for: the number of keys, and since when the first one waits, in epoch
    seconds. `newer`: it is announced, but only workers of a newer version can read its messages.
    """

    keys: int
    since: float
    newer: bool = False


#: Topic and fingerprint, and whether only workers of a newer version can read it.
Schema = tuple[str, bytes, bool]


class Unread:
    """Queues of one handler in one lane that wait for a schema, by local keys. Some may have ended.

    Attributes:
        used: whether there was such a queue since the lane opened.
    """

    __slots__ = ("_looked", "_queues", "_ready", "_schemas", "_since", "used")

    def __init__(self) -> None:
        self.used = False
        self._queues: dict[bytes, Schema] = {}
        #: In the order of the next check.
        self._schemas: dict[Schema, dict[bytes, None]] = {}
        self._since: dict[Schema, float] = {}
        self._ready: dict[bytes, None] = {}
        self._looked = 0.0

    def add(self, queue: bytes, topic: str, fingerprint: bytes, since: float, *, newer: bool = False) -> None:
        """Record that the head of a queue has waited for a schema since `since`, in epoch seconds. `newer`:
        this worker cannot read it, so it waits until another worker has the lane.
        """
        self.used = True
        self.forget(queue)
        schema = (topic, fingerprint, newer)
        self._queues[queue] = schema
        self._schemas.setdefault(schema, {})[queue] = None
        self._since[schema] = min(since, self._since.get(schema, since))

    def forget(self, queue: bytes) -> None:
        """Record that the head of a queue no longer waits for a schema."""
        self._ready.pop(queue, None)
        schema = self._queues.pop(queue, None)
        if schema is not None:
            self._schemas[schema].pop(queue)
            if not self._schemas[schema]:
                del self._schemas[schema], self._since[schema]

    def later(self, queue: bytes) -> None:
        """Move a ready queue behind the others, because it is not tried now."""
        self._ready[queue] = self._ready.pop(queue)

    def ready(self, routes: Mapping[str, BoundRoute], now: float) -> list[bytes]:
        """Some queues whose schema has been announced. A queue is returned again until it is forgotten."""
        if self._schemas and abs(now - self._looked) >= LOOK:
            self._looked = now
            for schema in list(islice(self._schemas, MOST_LOOKED_AT)):
                queues = self._schemas.pop(schema)
                if not _is_known(routes, *schema):
                    self._schemas[schema] = queues  # checked after the others next time
                    continue
                del self._since[schema]
                for queue in queues:
                    del self._queues[queue]
                self._ready.update(queues)
        return list(islice(self._ready, MOST_READY)) if self._ready else []

    def awaited(self) -> dict[str, Awaited]:
        """The schemas that messages wait for, by fingerprint."""
        found: dict[str, Awaited] = {}
        for schema, queues in self._schemas.items():
            (_, fingerprint, newer), since = schema, self._since[schema]
            before = found.get(name := fingerprint.decode(), Awaited(0, since))
            keys, first = before.keys + len(queues), min(before.since, since)
            found[name] = Awaited(keys, first, newer or before.newer)
        return found


def _is_known(routes: Mapping[str, BoundRoute], topic: str, fingerprint: bytes, newer: bool) -> bool:  # noqa: FBT001 - a tuple's parts
    """Whether a message with this schema can now be decoded, or fails for good."""
    if newer or topic not in routes:  # it waits for another version of the application
        return False
    try:
        routes[topic].codec.require(fingerprint)
    except UnknownSchema:
        return False
    except PermanentError:
        return True
    return True
