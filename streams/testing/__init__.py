"""Test tools: run a choreography or a saga in memory, or simulate workers with faults, reproducibly from a
seed. Also fakes of the broker, stores and clock, and faults at chosen points.

Nothing here needs Kafka, RocksDB or a network. `__all__` is the public interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams.testing.blobs import MemoryBlobs
from streams.testing.broker import Fault
from streams.testing.clock import ManualClock
from streams.testing.cluster import FakeCluster
from streams.testing.faults import ScriptedFaults, faults_from_environment
from streams.testing.log import FakeRecord
from streams.testing.pump import World, run_choreography
from streams.testing.sagas import SagaUnderTest, cancelled, error, expired, given_saga, refused, success
from streams.testing.simulation.handlers import SimulatedWorld
from streams.testing.simulation.users import Send, SimulationFailed, simulate
from streams.testing.store import MemoryStore, MemoryStores

if TYPE_CHECKING:
    from streams.testing.inbox import MemoryInbox
    from streams.testing.outbox import MemoryOutbox, MemoryPublisher
    from streams.testing.queue import MemoryQueue
else:

    def __getattr__(name: str) -> Any:
        """Import the fakes of PostgreSQL when they are used. Raises MissingExtra."""
        if name in _OF_POSTGRES:
            from importlib import import_module

            return getattr(import_module(f"streams.testing.{_OF_POSTGRES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_OF_POSTGRES = {
    "MemoryInbox": "inbox",
    "MemoryOutbox": "outbox",
    "MemoryPublisher": "outbox",
    "MemoryQueue": "queue",
}

__all__ = [
    "FakeCluster",
    "FakeRecord",
    "Fault",
    "ManualClock",
    "MemoryBlobs",
    "MemoryInbox",
    "MemoryOutbox",
    "MemoryPublisher",
    "MemoryQueue",
    "MemoryStore",
    "MemoryStores",
    "SagaUnderTest",
    "ScriptedFaults",
    "Send",
    "SimulatedWorld",
    "SimulationFailed",
    "World",
    "cancelled",
    "error",
    "expired",
    "faults_from_environment",
    "given_saga",
    "refused",
    "run_choreography",
    "simulate",
    "success",
]
