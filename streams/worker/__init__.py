"""The start-up of a worker: puts the engine, Kafka, Faust, RocksDB and the pages together."""

from __future__ import annotations

from importlib.util import find_spec


def has_room(name: str) -> bool:
    """Whether this copy of the library has a room that can be left out."""
    return find_spec(f"streams.{name}") is not None
