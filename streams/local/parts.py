"""Parts of a stack beside Kafka: their specification, and the companions that run them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from streams.local import artifacts, postgres, s3, state
from streams.local.busy_timeout import Say
from streams.local.companions import RunningCompanion, answering_http
from streams.local.errors import BadDeclaration
from streams.local.kafka import Jvm
from streams.local.processes import Companion


class StackSpec(msgspec.Struct, frozen=True):
    """The parts to run.

    Attributes:
        var: the stack's directory.
        brokers: 1 or 3; 0: what else is named alone, without Kafka.
        port: the first broker's port, the others follow it; None: free ports.
        processes: the companions to run, by name.
        buckets: S3 buckets to have; when there are some, S3Proxy runs as the companion `s3`.
        databases: PostgreSQL databases to have; when there are some, the server runs as the companion
            `postgres`, whose address leads to the first.
        cdc: run Kafka Connect with Debezium as the companion `connect`, for the first database.
        listeners: names of further listeners of each broker, each with a port of its own that is advertised
            at another one, for a proxy.
        secure: further listeners by name, advertised where they listen, each with its protocol: SSL, SASL_SSL
            or SASL_PLAINTEXT.
        broker_settings: further settings of each broker, by their names in `server.properties`.
        tiered: leave the JVM's optimising compiler on, for benchmarks.
        revive_after: start a broker that died again after so many seconds; None: its death ends the stack.
        lifeline: end when standard input closes, that is when the process that started the stack has ended.
    """

    var: str
    brokers: int = 1
    port: int | None = None
    processes: dict[str, Companion] = {}
    buckets: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()
    cdc: bool = False
    listeners: tuple[str, ...] = ()
    secure: dict[str, str] = {}
    broker_settings: dict[str, str] = {}
    tiered: bool = False
    revive_after: float | None = None
    lifeline: bool = False


def parts(
    spec: StackSpec, var: state.VarDir, jvm: Jvm, port: Callable[[], int], bootstrap: str, say: Say
) -> dict[str, RunningCompanion]:
    """The companions in the order in which they start: the application's come last, since they use ours.

    Raises:
        BadDeclaration: a bucket or a database has a bad name, or Connect has nothing to connect.
        JavaPartMissing, PostgresMissing: what runs one of them is not there.
        StackError: one of them cannot be prepared.
    """
    found: dict[str, RunningCompanion] = {}
    if spec.buckets:
        jars, at = artifacts.class_path(artifacts.S3PROXY, say), port()
        stored = s3.companion(jvm.java, jars, var.s3, at, spec.buckets)
        found[s3.NAME] = answering_http(stored, at, var)
    if spec.databases:
        found[postgres.NAME] = postgres.part(var.postgres, port(), spec.databases, say)
    if spec.cdc:
        if not (spec.brokers and spec.databases):
            raise BadDeclaration(
                "change data capture needs Kafka and a database: start at least one broker, and name"
                " `databases` in [tool.steadfaust.local]"
            )
        from streams.local import connect  # no other part needs what it imports

        url = found[postgres.NAME].url
        found[connect.NAME] = connect.part(
            jvm.java, var.connect, port(), bootstrap=bootstrap, database=url, say=say
        )
    return found | {
        name: answering_http(companion, port(), var) for name, companion in spec.processes.items()
    }
