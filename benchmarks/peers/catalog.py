"""Which peers there are: their names in the report, and how to start each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.compiled import FROM_SOURCES, is_compiled
from benchmarks.peers.programs import quix_python, streams_command

LANE = "lane"
RAW_SEND = "raw_send"

# What its documentation recommends for throughput: larger batches and polls. An interval beyond the default
# of 100 ms, which is exactly-once's, makes larger transactions, and caches that write a row once in each.
STREAMS_SETTINGS = (
    "commit.interval.ms=1000,statestore.cache.max.bytes=67108864,producer.linger.ms=100,"
    "producer.batch.size=262144,consumer.max.poll.records=4000,consumer.fetch.min.bytes=65536"
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that does the micro workload.

    Attributes:
        name: in the report.
        title: in the table.
        lacks: what it does not do of the workload; empty when it does all.
        command: starts it.
        environment: what of its environment is its own.
        slow: it gets fewer events.
    """

    name: str
    title: str
    lacks: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False


def catalog(var: Path, say: Callable[[str], None]) -> list[Peer]:
    """All peers, once what they need is installed; compiled programs go below `var`.

    Raises:
        SteadfaustError: something could not be installed.
    """
    return [
        *own_peers(),
        *_stock_faust(),
        Peer(
            "quix_exactly_once",
            "Quix Streams, exactly-once",
            "no inbox",
            [str(quix_python(say)), "-m", "benchmarks.peers.quix"],
        ),
        Peer(
            "kafka_streams_eos_v2",
            "Kafka Streams (Java), exactly_once_v2, one thread",
            "",
            streams_command(var / "java", say),
            {"BENCH_STREAMS": STREAMS_SETTINGS},
        ),
    ]


def own_peers() -> list[Peer]:
    """The lane and the loops that need nothing but the project's own packages."""
    loop = [sys.executable, "-m", "benchmarks.peers.raw_loop"]
    lane = _faust("benchmarks.peers.lane")
    from_sources = Peer("lane_from_sources", "the lane, not compiled", "", lane, FROM_SOURCES)
    return [
        Peer(LANE, "the lane", "", lane),
        Peer("lane_without_metrics", "the lane, without metrics", "", lane, {"STEADFAUST_METRICS": "false"}),
        *([from_sources] if is_compiled() else []),
        Peer(RAW_SEND, "bare aiokafka loop, a send for each record", "no rows, no inbox", [*loop, "send"]),
        Peer("raw_send_batch", "bare aiokafka loop, packed", "no rows, no inbox", [*loop, "send_batch"]),
    ]


def _stock_faust() -> list[Peer]:
    command = _faust("benchmarks.peers.stock_faust", "--loop", "uvloop")
    return [
        Peer(
            f"faust_{guarantee}",
            f"stock Faust, {guarantee.replace('_', ' ')}",
            "no inbox",
            command,
            {"BENCH_GUARANTEE": guarantee},
            slow=True,
        )
        for guarantee in ("at_least_once", "exactly_once")
    ]


def _faust(module: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "faust", "-A", module, *options, "worker", "-l", "warn", "--without-web"]
