"""For tests: a choreography or a saga run in memory, or simulated with faults that a seed decides; a broker,
stores, a clock, and faults at chosen points.

No Kafka, RocksDB or network. What services import is named here.
"""

from streams.testing.blobs import MemoryBlobs
from streams.testing.broker import Fault
from streams.testing.clock import ManualClock
from streams.testing.cluster import FakeCluster
from streams.testing.faults import ScriptedFaults, faults_from_environment
from streams.testing.inbox import MemoryInbox
from streams.testing.log import FakeRecord
from streams.testing.outbox import MemoryOutbox, MemoryPublisher
from streams.testing.pump import World, run_choreography
from streams.testing.queue import MemoryQueue
from streams.testing.sagas import SagaUnderTest, cancelled, error, expired, given_saga, refused, success
from streams.testing.simulation.handlers import SimulatedWorld
from streams.testing.simulation.users import Send, SimulationFailed, simulate
from streams.testing.store import MemoryStore, MemoryStores

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
