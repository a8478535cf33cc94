"""`steadfaust positions`, as an operator types it; on lanes: tests/lane/test_lane_identity.py."""

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from streams.cli.positions import app
from streams.engine.life.positions.cuts import recorded_cut
from streams.engine.life.positions.identity import Recorded, decode, encode
from streams.engine.staging.keys import IDENTITY, POSITION
from streams.errors import LayoutMismatch, PositionLost
from streams.model.layout import Layout
from streams.ports import TP, Note
from streams.testing.cluster import FakeCluster

ORDERS = TP("orders", 0)
CHANGELOG = TP("shop-lane-changelog", 0)


class Cluster(FakeCluster):
    async def close(self) -> None:
        pass

    @property
    def written(self) -> dict[bytes, bytes]:
        return {record.key: record.value for record in self.visible(CHANGELOG.topic)}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A lane that has read five messages of a topic which was created again since, with three others."""
    made = Cluster({"orders": 1, "shop-lane-changelog": 1, "shop-announcements": 1})
    made.produce(TP("shop-announcements", 0), b"cut:1", b"{}")
    former = Recorded(made.id, {name: made.ids[name] for name in ("orders", "shop-lane-changelog")})
    made.produce(CHANGELOG, IDENTITY, encode(former))
    made.produce(CHANGELOG, POSITION + b"orders", b"5")
    made.recreate_topic("orders")
    for n in range(3):
        made.produce(ORDERS, None, b"%d" % n)
    monkeypatch.setattr("streams.kafka.cluster.KafkaCluster", lambda *_: made)
    given = {"APP_ID": "shop", "PARTITIONS": "1", "LANES": "1", "BOOTSTRAP": "nowhere:9092"}
    for name, value in given.items():
        monkeypatch.setenv(f"STEADFAUST_{name}", value)
    return made


async def test_an_application_that_there_is_keeps_its_cut(cluster: Cluster) -> None:
    assert await recorded_cut(Layout("shop", 4, 2), cluster) == Layout("shop", 1, 1)
    assert await recorded_cut(Layout("other", 4, 2), cluster) == Layout("other", 4, 2)
    cluster.create_topic("shop-lane-changelog", 8)
    assert await recorded_cut(Layout("shop", 4, 2), cluster) == Layout("shop", 8, 1)
    cluster.produce(TP("shop-announcements", 0), b"cut:4", b"{}")
    assert await recorded_cut(Layout("shop", 4, 2), cluster) == Layout("shop", 8, 4)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_what_stops_a_lane_is_listed(cluster: Cluster) -> None:
    found = run("list", "--problems", "--json")
    assert found.exit_code == 4
    (line,) = found.output.splitlines()
    wanted = {"topic": "orders", "problem": "created again", "recorded": 5, "end": 3}
    assert wanted.items() <= json.loads(line).items()
    assert "orders[0]  offsets 0 to 3  position 5  CREATED AGAIN" in run("list").output
    assert run("list", "--topic", "unknown").exit_code == 3


@pytest.fixture
def same(cluster: Cluster) -> Cluster:
    """The topic is still the one that the lane has read."""
    now = Recorded(cluster.id, {name: cluster.ids[name] for name in ("orders", "shop-lane-changelog")})
    cluster.produce(CHANGELOG, IDENTITY, encode(now))
    return cluster


@pytest.mark.promise("truncated-logs")
@pytest.mark.parametrize("grown", [0, 9], ids=["short", "grown again"])
def test_a_cut_log_is_listed_as_a_problem(same: Cluster, grown: int) -> None:
    for n in range(2):
        same.produce(ORDERS, None, b"%d" % n)
    assert run("list", "--problems").exit_code == 0

    async def commit() -> None:
        producer = same.transactions("shop-lane-0-of-1")
        await producer.start()
        await producer.begin()
        await producer.send_offsets({ORDERS: 5}, "shop", {ORDERS: Note(same.log(ORDERS).epoch, "")})
        await producer.commit()

    asyncio.run(commit())
    assert run("list", "--problems").output == ""
    same.cut(ORDERS, 3)
    for n in range(grown):
        same.produce(ORDERS, None, b"%d" % n)
    found = run("list", "--problems")
    line = f"orders[0]  offsets 0 to {3 + grown}  position 5  RECORDS WERE LOST FROM 3 TO 5"
    assert (found.exit_code, found.output.splitlines()) == (4, [line])
    (told,) = map(json.loads, run("list", "--problems", "--json").output.splitlines())
    assert {"problem": "records were lost", "cut": 3, "had": 5}.items() <= told.items()
    assert "continues at 3 (was 5)" in run("accept", "--topic", "orders").output
    settled = run("list", "--problems")
    assert (settled.exit_code, settled.output) == (0, "")


def test_a_dry_run_changes_nothing(cluster: Cluster) -> None:
    end = len(cluster.entries(CHANGELOG))
    told = run("accept", "--topic", "orders", "--dry-run")
    assert (told.exit_code, "continues at 0 (was 5)" in told.output) == (0, True)
    assert "nothing was changed" in told.output
    assert len(cluster.entries(CHANGELOG)) == end
    assert run("list").exit_code == 4


def test_accepting_is_one_transaction_of_topic_position_and_group(cluster: Cluster) -> None:
    done = run("accept", "--topic", "orders", "--at", "2", "--json")
    assert done.exit_code == 0
    moved = {"topic": "orders", "partition": 0, "before": 5, "position": 2}
    assert json.loads(done.output) == {**moved, "topic_id": cluster.ids["orders"]}
    assert cluster.written[POSITION + b"orders"] == b"2"
    assert decode(cluster.written[IDENTITY]).topics["orders"] == cluster.ids["orders"]
    assert cluster.groups["shop"] == {ORDERS: 2}
    assert len({entry.transaction for entry in cluster.entries(CHANGELOG)} - {None}) == 1
    assert run("list").exit_code == 0


@pytest.mark.parametrize(("at", "kept"), [("recorded", b"2 3-5"), ("2", b"2 3-5"), ("1", b"1"), ("3", b"3")])
def test_what_is_handled_above_an_unmoved_position_is_kept(cluster: Cluster, at: str, kept: bytes) -> None:
    now = Recorded(cluster.id, {name: cluster.ids[name] for name in ("orders", "shop-lane-changelog")})
    cluster.produce(CHANGELOG, IDENTITY, encode(now))
    cluster.produce(CHANGELOG, POSITION + b"orders", b"2 3-5")
    for n in range(3):
        cluster.produce(ORDERS, None, b"%d" % n)
    assert run("accept", "--topic", "orders", "--at", at).exit_code == 0
    assert cluster.written[POSITION + b"orders"] == kept


def test_what_was_handled_in_a_former_topic_is_forgotten(cluster: Cluster) -> None:
    cluster.produce(CHANGELOG, POSITION + b"orders", b"1 2-3")
    assert run("accept", "--topic", "orders", "--at", "1").exit_code == 0
    assert cluster.written[POSITION + b"orders"] == b"1"


@pytest.mark.parametrize("at", ["4", "group"])
def test_a_position_that_there_is_not_is_refused(cluster: Cluster, at: str) -> None:
    assert isinstance(run("accept", "--topic", "orders", "--at", at).exception, PositionLost)
    assert run("accept", "--topic", "orders", "--at", "somewhere").exit_code == 2
    assert run("list").exit_code == 4


@pytest.mark.promise("recreated-topics")
def test_with_another_cut_nothing_is_accepted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("orders", "shop-lane-changelog"):
        cluster.create_topic(name, 2)
    assert "shop has 2 partitions" in str(run("list").exception)
    monkeypatch.setenv("STEADFAUST_PARTITIONS", "2")
    cluster.produce(TP("shop-announcements", 0), b"cut:2", b"2")
    assert isinstance(run("accept", "--topic", "orders").exception, LayoutMismatch)
    assert run("list").exit_code == 4
