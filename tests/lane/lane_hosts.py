"""Hosts of lanes, for the tests of a worker's membership."""

from typing import Any

from lane_worlds import Post, World

from streams.engine.life.host import LaneHost
from streams.ports import Ports
from streams.testing.faults import NoFaults


def host_of(
    world: World, fatal: list[BaseException], faults: Any = None, stores: Any = None, cluster: Any = None
) -> LaneHost:
    host = LaneHost(
        world.app,
        Ports(cluster or world.cluster, stores or world.machine, world.clock, faults or NoFaults()),
        fatal.append,
    )
    world.at_end.append(host.stop)
    return host


class Starts:
    """The cluster as one worker sees it: notes every lane that begins to open."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.started = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def transactions(self, transactional_id: str) -> Any:
        self.started += 1
        return self._cluster.transactions(transactional_id)


async def opened(world: World, host: LaneHost) -> None:
    await world.until(lambda: all(lane.state == "open" for lane in host.lanes.values()))


def of_lane(world: World, events: list[Post], lane: int) -> list[Post]:
    return [post for post in events if world.app.layout.lane_of(post.partition) == lane]
