"""Which peers there are: their names in the report, and how to start each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import FROM_SOURCES, is_compiled
from benchmarks.peers.programs import quix_python, streams_command
from benchmarks.peers.workload import Format

LANE = "lane"
RAW_SEND = "raw_send"

# What its documentation recommends for throughput: larger batches and polls, and caches that write a row once
# in each transaction.
STREAMS_SETTINGS = (
    "statestore.cache.max.bytes=67108864,producer.linger.ms=100,"
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
        warmed: it gets more events, of which fewer count, since it is compiled while it runs.
        counts: it keeps a count for each key, which every event that comes out has.
        formats: those in which it is measured.
    """

    name: str
    title: str
    lacks: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False
    warmed: bool = False
    counts: bool = True
    formats: Sequence[Format] = tuple(Format)


@dataclass(frozen=True, slots=True)
class Interval:
    """How often a peer commits that does so by the clock.

    Attributes:
        milliseconds: from one transaction to the next.
        words: in the table.
        suffix: of names in the report.
        formats: those in which it is measured.
    """

    milliseconds: int
    words: str
    suffix: str
    formats: Sequence[Format] = tuple(Format)


#: With exactly-once, 100 ms is Kafka Streams' own. Quix Streams gained nothing by more than a second.
INTERVALS = (Interval(1000, "second", ""), Interval(100, "100 ms", "_100ms", (Format.JSON,)))
_NO_STATE = "no rows, no inbox"


def catalog(var: Path, say: Callable[[str], None], collector: str) -> list[Peer]:
    """All peers, once what they need is installed; compiled programs go below `var`, traces to a `collector`.

    Raises:
        SteadfaustError: something could not be installed.
    """
    return [
        *own_peers(collector),
        *_stock_faust(),
        *_quix([str(quix_python(say)), "-m", "benchmarks.peers.quix"]),
        *_kafka_streams(streams_command(var / "java", say)),
    ]


def own_peers(collector: str = "") -> list[Peer]:
    """The lane and the loops that need nothing but the project's own packages. Traces go to a `collector`, an
    address; without one no peer has any.
    """
    loop = [sys.executable, "-m", "benchmarks.peers.raw_loop"]
    lane = _faust("benchmarks.peers.lane")
    traced = {"STEADFAUST_TRACES": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    from_sources = Peer("lane_from_sources", "the lane, not compiled", "", lane, FROM_SOURCES)
    return [
        Peer(LANE, "the lane", "", lane),
        Peer("lane_without_metrics", "the lane, without metrics", "", lane, {"STEADFAUST_METRICS": "false"}),
        *([Peer("lane_with_traces", "the lane, with traces", "", lane, traced)] if collector else []),
        *([from_sources] if is_compiled() else []),
        Peer(
            RAW_SEND, "bare aiokafka loop, a send for each record", _NO_STATE, [*loop, "send"], counts=False
        ),
        Peer("raw_send_batch", "bare aiokafka loop, packed", _NO_STATE, [*loop, "send_batch"], counts=False),
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


def _quix(command: Sequence[str]) -> list[Peer]:
    return [
        Peer(
            f"quix_exactly_once{every.suffix}",
            f"Quix Streams, exactly-once, commits each {every.words}",
            "no inbox",
            command,
            {"BENCH_COMMIT_INTERVAL": str(every.milliseconds / 1000)},
            formats=every.formats,
        )
        for every in INTERVALS
    ]


def _kafka_streams(command: Sequence[str]) -> list[Peer]:
    return [
        Peer(
            f"kafka_streams_eos_v2{of_threads}{every.suffix}",
            f"Kafka Streams (Java), {words}, commits each {every.words}",
            "",
            command,
            {
                "BENCH_STREAMS": f"{STREAMS_SETTINGS},num.stream.threads={threads},"
                f"commit.interval.ms={every.milliseconds}"
            },
            warmed=True,
            formats=every.formats if threads == 1 else (Format.JSON,),
        )
        for threads, words, of_threads in ((1, "one thread", ""), (2, "two threads", "_two_threads"))
        for every in INTERVALS
    ]


def _faust(module: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "faust", "-A", module, *options, "worker", "-l", "warn", "--without-web"]
