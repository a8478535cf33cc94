from pathlib import Path

import msgspec
import pytest

from streams.local.errors import BadListener, OtherCluster
from streams.local.kafka import BrokerNode, ClusterFiles, DirectoryFormat, Jvm, properties
from streams.local.state import Listener

NODES = [BrokerNode(1, 20001, 20011), BrokerNode(2, 20002, 20012), BrokerNode(3, 20003, 20013)]
JVM = Jvm(Path("java"), "kafka.jar")


def read(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_every_listener_is_on_the_loopback_interface() -> None:
    settings = read(properties(NODES[0], NODES, Path("data")))
    assert settings["listeners"] == "CLIENTS://127.0.0.1:20001,CONTROLLER://127.0.0.1:20011"
    assert settings["advertised.listeners"] == "CLIENTS://127.0.0.1:20001"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:20011,2@127.0.0.1:20012,3@127.0.0.1:20013"


def test_a_further_listener_sends_clients_to_its_proxy() -> None:
    node = BrokerNode(1, 20001, 20011, {"worker-1": Listener(port=20021, advertised=20031)})
    settings = read(properties(node, [node], Path("data")))
    assert settings["listeners"] == (
        "CLIENTS://127.0.0.1:20001,WORKER_1://127.0.0.1:20021,CONTROLLER://127.0.0.1:20011"
    )
    assert settings["advertised.listeners"] == "CLIENTS://127.0.0.1:20001,WORKER_1://127.0.0.1:20031"
    assert settings["inter.broker.listener.name"] == "CLIENTS"
    protocols = settings["listener.security.protocol.map"]
    assert protocols == "CLIENTS:PLAINTEXT,WORKER_1:PLAINTEXT,CONTROLLER:PLAINTEXT"


@pytest.mark.parametrize("name", ["", "Worker", "worker_1", "worker-", "1", "a://b", "clients", "controller"])
def test_a_listener_has_a_name_that_kafka_takes(name: str) -> None:
    node = BrokerNode(1, 20001, 20011, {name: Listener(20021, 20031)})
    with pytest.raises(BadListener, match="use lower-case words joined by dashes, such as worker-1"):
        properties(node, [node], Path("data"))


@pytest.mark.parametrize(("brokers", "copies", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_internal_topics_are_as_safe_as_the_cluster_allows(brokers: int, copies: str, in_sync: str) -> None:
    settings = read(properties(NODES[0], NODES[:brokers], Path("data")))
    replicated = [name for name in settings if name.endswith("replication.factor")]
    least = [name for name in settings if name.endswith((".min.isr", "min.insync.replicas"))]
    assert len(replicated) == 4
    assert len(least) == 3
    assert {settings[name] for name in replicated} == {copies}
    assert {settings[name] for name in least} == {in_sync}


def test_data_of_another_cluster_size_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(DirectoryFormat("id", brokers=1)))
    why = r"holds a cluster of 1 broker\(s\), not 3: start it with --brokers 1"
    with pytest.raises(OtherCluster, match=why):
        ClusterFiles(tmp_path, JVM, NODES).prepare()


def test_data_found_again_gets_the_ports_of_this_start(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(DirectoryFormat("id", brokers=1)))
    cluster = ClusterFiles(tmp_path, JVM, [BrokerNode(1, 20001, 20011)])
    cluster.prepare()
    assert cluster.shape.cluster_id == "id"
    assert "CLIENTS://127.0.0.1:20001" in (tmp_path / "broker-1.properties").read_text()
