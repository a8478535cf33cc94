"""Keys go where every Kafka client puts them, and partitions to lanes."""

import pytest
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import SettingsError
from streams.model.layout import Layout, dead_letter_topic, murmur2, partition_of


@given(st.binary(max_size=200))
def test_the_hash_is_that_of_kafka_clients(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == murmur2_of_aiokafka(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "expected"),
    # From Kafka's own UtilsTest.testMurmur2.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.binary(min_size=1, max_size=40), st.integers(1, 300))
def test_a_key_lies_in_the_partition_of_other_clients(key: bytes, partitions: int) -> None:
    everything = list(range(partitions))
    assert partition_of(key, partitions) == DefaultPartitioner()(key, everything, everything)


@given(st.integers(1, 100).flatmap(lambda p: st.tuples(st.just(p), st.integers(1, p))))
def test_every_partition_has_one_lane_and_every_lane_a_partition(cut: tuple[int, int]) -> None:
    partitions, lanes = cut
    layout = Layout("app", partitions, lanes)
    owned = [partition for lane in range(lanes) for partition in layout.partitions_of(lane)]
    assert sorted(owned) == list(range(partitions))
    assert all(layout.partitions_of(lane) for lane in range(lanes))
    assert all(each in layout.partitions_of(layout.lane_of(each)) for each in range(partitions))


def test_names_follow_from_the_application() -> None:
    layout = Layout("shop", 4, 2)
    assert layout.transactional_id(1) == "shop-lane-1-of-2"
    assert layout.changelog("stock") == "shop-stock-changelog"
    assert layout.announcements == "shop-announcements"
    assert dead_letter_topic("orders.order.placed.v1") == "orders.order.placed.v1.dlq"
    assert layout.lane_of_key("order-1") == layout.lane_of(layout.partition_of(b"order-1"))


@pytest.mark.parametrize(("partitions", "lanes"), [(0, 0), (4, 0), (4, 5), (4, -1), (-1, -1)])
def test_a_cut_that_cannot_be_is_refused(partitions: int, lanes: int) -> None:
    with pytest.raises(SettingsError, match=f"use 1 to {partitions} lanes"):
        Layout("app", partitions, lanes)
