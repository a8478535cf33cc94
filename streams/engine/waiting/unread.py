"""Queues of a handler that wait for a schema: their messages cannot be decoded until it is announced."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from streams.errors import PermanentError, UnknownSchema
from streams.model.bound import BoundRoute

#: Between looks whether schemas have been announced, in seconds.
LOOK = 1.0
#: Schemas that one look asks for: anybody can make up fingerprints.
MOST_LOOKED_AT = 1000
#: Queues that are given out at once.
MOST_READY = 200


class Awaited(NamedTuple):
    """A schema that messages wait for: of how many keys, and the earliest since when, epoch seconds. `newer`:
    it is announced, and workers of a newer version can read what it wrote.
    """

    keys: int
    since: float
    newer: bool = False


#: Topic and fingerprint, and whether only workers of a newer version can read it.
Schema = tuple[str, bytes, bool]


class Unread:
    """Queues of one handler in one lane that wait for a schema, by local keys; some may have ended.

    Attributes:
        used: whether there was any since the lane opened.
    """

    __slots__ = ("_looked", "_queues", "_ready", "_schemas", "_since", "used")

    def __init__(self) -> None:
        self.used = False
        self._queues: dict[bytes, Schema] = {}
        #: In the order in which they are looked at.
        self._schemas: dict[Schema, dict[bytes, None]] = {}
        self._since: dict[Schema, float] = {}
        self._ready: dict[bytes, None] = {}
        self._looked = 0.0

    def add(self, queue: bytes, topic: str, fingerprint: bytes, since: float, *, newer: bool = False) -> None:
        """The head of a queue waits, since then (epoch seconds). `newer`: until its lane is another worker's,
        for this one cannot read it.
        """
        self.used = True
        self.forget(queue)
        schema = (topic, fingerprint, newer)
        self._queues[queue] = schema
        self._schemas.setdefault(schema, {})[queue] = None
        self._since[schema] = min(since, self._since.get(schema, since))

    def forget(self, queue: bytes) -> None:
        """The head of a queue does not wait for a schema any more."""
        self._ready.pop(queue, None)
        schema = self._queues.pop(queue, None)
        if schema is not None:
            self._schemas[schema].pop(queue)
            if not self._schemas[schema]:
                del self._schemas[schema], self._since[schema]

    def later(self, queue: bytes) -> None:
        """A queue whose schema is there is not tried now: others come before it."""
        self._ready[queue] = self._ready.pop(queue)

    def ready(self, routes: Mapping[str, BoundRoute], now: float) -> list[bytes]:
        """Some of those whose schema has been announced since; each until it is forgotten."""
        if self._schemas and abs(now - self._looked) >= LOOK:
            self._looked = now
            for schema in list(islice(self._schemas, MOST_LOOKED_AT)):
                queues = self._schemas.pop(schema)
                if not _is_known(routes, *schema):
                    self._schemas[schema] = queues  # looked at after the others
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
    """Whether a message would be read, or turn out to be none."""
    if newer or topic not in routes:  # it waits for another version of the application
        return False
    try:
        routes[topic].codec.require(fingerprint)
    except UnknownSchema:
        return False
    except PermanentError:
        return True
    return True
