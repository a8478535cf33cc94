"""Whoever stands outside sees what waits in the lanes: on real Kafka, by the client."""

from pathlib import Path
from typing import Any

from lane_failing import Failing
from lane_kafka import KafkaWorld
from lane_scenes import finished, opened, retrying_counter
from lane_worlds import closing

from streams.errors import TransientError
from streams.policy.retry import RetryPolicy
from streams.runtime.client import waiting


async def test_a_client_sees_how_many_wait_for_which_handler(kafka: Any, tmp_path: Path) -> None:
    async with closing(KafkaWorld(kafka.bootstrap, tmp_path)) as world:
        work = await retrying_counter(world, retry=RetryPolicy(immediate=0, delays=(3.0,)))
        app_id = world.app.layout.app_id
        assert await waiting(kafka.bootstrap, app_id) == {}
        work.hooks.before = Failing(world, {("a", 0): 1, ("b", 0): 1}, TransientError("away"))
        events = [world.event(work, key, i) for key in "abc" for i in range(3)]
        lane = await opened(world, *events)
        await world.settled(work.source)
        assert await waiting(kafka.bootstrap, app_id) == {"bench.count": 6}
        await finished(world, work, lane, events, lambda: lane.handled >= len(events) + 6)
        assert await waiting(kafka.bootstrap, app_id) == {}
