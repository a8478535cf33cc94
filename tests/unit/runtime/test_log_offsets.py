"""Where logs end, or pass a time: the request as brokers read it, and what becomes of each answer."""

from collections.abc import Mapping
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import LeaderNotAvailableError, NotLeaderForPartitionError
from aiokafka.protocol.offset import OffsetRequest_v2, OffsetResponse_v2

from streams.kafka.log_offsets import STABLE_END, offsets_at
from streams.ports import TP

FIRST, SECOND, THIRD = TP("t", 0), TP("t", 1), TP("u", 0)
TIMES = {FIRST: 1_700_000_000_000, SECOND: STABLE_END, THIRD: 5}


class Client:
    """Two brokers, which answer with an error or an offset for each partition."""

    def __init__(self, found: Mapping[TP, tuple[int, int]], leaders: Mapping[TP, int | None]) -> None:
        self._found = found
        self.cluster = SimpleNamespace(leader_for_partition=leaders.get)
        self.requested: dict[int, dict[TP, int]] = {}
        self.updates = 0

    async def send(self, node: int, request: Any) -> Any:
        built = request.prepare({2: (1, 10)})
        assert (built.API_KEY, built.API_VERSION) == (2, 2)
        replica, isolation, topics = OffsetRequest_v2.SCHEMA.decode(BytesIO(built.encode()))
        assert (replica, isolation) == (-1, 1)
        wanted = {TP(topic, number): time for topic, each in topics for number, time in each}
        self.requested[node] = wanted
        found = [(topic, [(n, *self._row(TP(topic, n))) for n, _ in each]) for topic, each in topics]
        return built.decode(BytesIO(OffsetResponse_v2.SCHEMA.encode((0, found))))

    def _row(self, tp: TP) -> tuple[int, int, int]:
        error, offset = self._found[tp]
        return error, 0, offset

    async def force_metadata_update(self) -> None:
        self.updates += 1


async def test_each_leader_is_requested_for_what_it_leads() -> None:
    client = Client({FIRST: (0, -1), SECOND: (0, 2**40), THIRD: (0, 0)}, {FIRST: 1, SECOND: 2, THIRD: 1})
    assert await offsets_at(client, TIMES) == {SECOND: 2**40, THIRD: 0}
    assert client.requested == {1: {FIRST: TIMES[FIRST], THIRD: 5}, 2: {SECOND: -1}}
    assert not client.updates


async def test_an_error_of_a_partition_is_raised() -> None:
    client = Client({FIRST: (0, 1), SECOND: (6, -1)}, {FIRST: 1, SECOND: 1})
    with pytest.raises(NotLeaderForPartitionError, match=r"t\[1\]"):
        await offsets_at(client, {FIRST: 0, SECOND: 0})
    assert client.updates == 1


@pytest.mark.parametrize("leader", [None, -1])
async def test_a_partition_without_a_leader_is_an_error(leader: int | None) -> None:
    client = Client({}, {FIRST: leader})
    with pytest.raises(LeaderNotAvailableError, match=r"t\[0\]"):
        await offsets_at(client, {FIRST: 0})
    assert client.updates == 1
    assert not client.requested
