"""A Kafka cluster as files and command lines: properties, format, start."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from streams.local.busy_timeout import BusyTimeout
from streams.local.errors import BadListener, OtherCluster, StackError
from streams.local.loopback import HOST
from streams.local.processes import POLL
from streams.local.state import Listener

FORMAT_BOUND = 60.0
"""Seconds for Kafka's storage tool to prepare one directory, as `BusyTimeout` counts them."""

_CLIENTS, _CONTROLLER = "CLIENTS", "CONTROLLER"
"""The listeners that every broker has."""

_LOGGING = {
    "showDateTime": "true",
    "dateTimeFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    # These print every setting at each start, hundreds of lines: the broker's properties file has ours.
    "log.kafka.server.KafkaConfig": "warn",
    "log.org.apache.kafka.common.config": "warn",
    # These print lines for each partition, of which an application has a thousand: at its start, and when a
    # broker recovers, which takes minutes on a busy machine.
    "log.state.change.logger": "warn",
    "log.kafka.cluster.Partition": "warn",
    "log.kafka.log.LogManager": "warn",
    "log.kafka.server.ReplicaFetcherThread": "warn",
    "log.kafka.server.metadata.DynamicConfigPublisher": "warn",
    "log.kafka.coordinator.transaction.TransactionMarkerRequestCompletionHandler": "warn",
    "log.org.apache.kafka.controller.ConfigurationControlManager": "warn",
    "log.org.apache.kafka.controller.ReplicationControlManager": "warn",
    "log.org.apache.kafka.storage.internals.log": "warn",
}


class DirectoryFormat(msgspec.Struct, frozen=True):
    """The cluster that a data directory was formatted for, kept in its `cluster.json`."""

    cluster_id: str
    brokers: int


@dataclass(frozen=True)
class BrokerNode:
    """One broker that is its own controller too.

    Attributes:
        id: from 1.
        port: where clients and other brokers connect.
        controller_port: where controllers talk to each other.
        listeners: further ways in for clients, by name.
        settings: further settings, by their names in `server.properties`.
    """

    id: int
    port: int
    controller_port: int
    listeners: Mapping[str, Listener] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Jvm:
    """How to run Kafka's classes.

    Attributes:
        java: the binary.
        class_path: Kafka's jars.
        tiered: for benchmarks: leave the optimising compiler on, slower to start and faster once warm.
    """

    java: Path
    class_path: str
    tiered: bool = False

    def command(self, main_class: str, *arguments: str) -> list[str]:
        """The command line that runs a class."""
        flags = ["-Xmx384m", "-XX:+UseSerialGC", "--enable-native-access=ALL-UNNAMED"]
        if not self.tiered:
            flags.append("-XX:TieredStopAtLevel=1")
        flags += [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in _LOGGING.items()]
        return [str(self.java), *flags, "-cp", self.class_path, main_class, *arguments]


def listener_name(name: str) -> str:
    """Kafka's name of a further listener: `worker-1` is `WORKER_1`, and no other name is.

    Raises:
        BadListener: it is not lower-case words joined by dashes, or it is one of the broker's own.
    """
    legal = name.replace("-", "_").upper()
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or legal in (_CLIENTS, _CONTROLLER):
        raise BadListener(
            f"a listener cannot be named {name!r}: use lower-case words joined by dashes, such as worker-1,"
            f" and neither clients nor controller"
        )
    return legal


def properties(node: BrokerNode, nodes: Sequence[BrokerNode], data: Path) -> str:
    """The contents of a broker's `server.properties`. Longer than other functions: it is one list."""
    copies, in_sync = (3, 2) if len(nodes) >= 3 else (1, 1)
    voters = ",".join(f"{each.id}@{HOST}:{each.controller_port}" for each in nodes)
    further = {listener_name(name): listener for name, listener in node.listeners.items()}
    listens = {_CLIENTS: node.port} | {name: each.port for name, each in further.items()}
    advertised = {_CLIENTS: node.port} | {name: each.advertised for name, each in further.items()}
    protocols = dict.fromkeys([*listens, _CONTROLLER], "PLAINTEXT") | {
        name: each.protocol for name, each in further.items()
    }
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": voters,
        "controller.listener.names": _CONTROLLER,
        "listeners": _addresses(listens | {_CONTROLLER: node.controller_port}),
        "advertised.listeners": _addresses(advertised),
        "inter.broker.listener.name": _CLIENTS,
        "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in protocols.items()),
        "log.dirs": data,
        # Topics are declared by the application, which checks them: a typo must not make one.
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        # A group of workers starts at once instead of after 3 s.
        "group.initial.rebalance.delay.ms": 0,
        # 50 partitions each is for large clusters; a few start and recover faster.
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.num.partitions": 4,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        # A transaction past its timeout blocks readers until the next sweep: 10 s apart by default.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 2000,
        # A broker that was killed may register again only when its old session has ended: 9 s by default.
        "broker.session.timeout.ms": 6000,
        "broker.heartbeat.interval.ms": 1000,
        # How long a coordinator waits for a broker that hangs to take a commit's markers, until it asks the
        # new leader; the lane's next transaction waits for them. A little over the session; 30 s by default.
        "request.timeout.ms": 8000,
        # Compaction wipes all of this memory for each log: 128 MB by default, a third of the heap.
        "log.cleaner.dedupe.buffer.size": 8 << 20,
        # An index is a sparse file, 10 MB by default. Kernels read ahead in it, up to 8 MB on some machines,
        # which is as many zeros to write: a third of two processors while hundreds of segments began.
        "log.index.size.max.bytes": 1 << 20,
        **node.settings,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


class ClusterFiles:
    """The files of one cluster: `cluster.json`, and for each broker its properties and its data."""

    def __init__(self, home: Path, jvm: Jvm, nodes: Sequence[BrokerNode]) -> None:
        self.home = home
        self.jvm = jvm
        self.nodes = nodes

    @property
    def shape(self) -> DirectoryFormat:
        """The cluster that the storage was formatted for."""
        return msgspec.json.decode((self.home / "cluster.json").read_bytes(), type=DirectoryFormat)

    @property
    def bootstrap(self) -> str:
        """`host:port[,host:port...]` for clients."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def prepare(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Write the brokers' properties; format their storage if this is the first time.

        Raises:
            OtherCluster: the data is of a cluster with another number of brokers.
            StackError: Kafka's storage tool failed.
        """
        if not self.nodes:
            return
        if not self.home.exists():
            self._format(say)
        found = self.shape.brokers
        if found != len(self.nodes):
            raise OtherCluster(
                f"{self.home} holds a cluster of {found} broker(s), not {len(self.nodes)}: "
                f"start it with --brokers {found}, choose another --var, or remove {self.home} and its data"
            )
        for node in self.nodes:
            self._write_properties(self.home, node)

    def command(self, node: BrokerNode) -> list[str]:
        """The command line of a prepared broker."""
        return self.jvm.command("kafka.Kafka", str(self.home / f"broker-{node.id}.properties"))

    def _format(self, say: Callable[[str], None]) -> None:
        """Format all brokers' storage aside and move it in place, so that a crash leaves all or nothing."""
        part = self.home.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        shape = DirectoryFormat(cluster_id=_new_cluster_id(), brokers=len(self.nodes))
        for node in self.nodes:
            written = self._write_properties(part, node)
            arguments = ["format", "-t", shape.cluster_id, "-c", str(written)]
            command = self.jvm.command("kafka.tools.StorageTool", *arguments)
            _run(command, part / f"format-{node.id}.log", f"the storage of broker {node.id}", say)
        (part / "cluster.json").write_bytes(msgspec.json.encode(shape))
        part.rename(self.home)

    def _write_properties(self, home: Path, node: BrokerNode) -> Path:
        path = home / f"broker-{node.id}.properties"
        path.write_text(properties(node, self.nodes, home / f"broker-{node.id}"))
        return path


def _run(command: Sequence[str], log: Path, what: str, say: Callable[[str], None]) -> None:
    """Run Kafka's storage tool. Raises StackError."""
    with log.open("w") as output:
        tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    patience = BusyTimeout(what, FORMAT_BOUND, lambda: [tool.pid], say)
    why = ""
    while not why:
        with suppress(subprocess.TimeoutExpired):
            if tool.wait(POLL) == 0:
                return
            why = (log.read_text().strip().splitlines() or ["no output"])[-1]
        if patience.over():
            tool.kill()
            tool.wait()
            why = f"no end within {patience}"
    raise StackError(f"Kafka cannot prepare {what} in {log.parent}: {why}")


def _new_cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes in unpadded URL-safe base64, not beginning with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text
