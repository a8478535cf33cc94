"""Two workers open one lane at the same time: one fences the other before that one has got to its positions.

Found by the model of the protocol (`chaos/model`). The lane that was overtaken compared the group's position
of after the other's commit with a changelog read before it, and stopped for good with PositionLost. Now it
opens again, and stops when it finds the very same two positions. Now it asks again.
"""

import pytest
from lane_checker import check, check_store
from lane_scenes import counter, handled, some, stopped
from lane_worlds import World

from streams.testing.faults import ScriptedFaults


@pytest.mark.landing
async def test_a_lane_overtaken_while_it_recovers_opens_again(world: World) -> None:
    work = await counter(world)
    events = some(world, work, range(2))
    await handled(world, work, events)

    faults = ScriptedFaults()
    pause = faults.pause_at("recovering")
    elsewhere = world.stores()
    owner = world.lane(stores=elsewhere, faults=faults)
    await pause.reached()
    # A worker that has not heard yet that it lost the lane: it fences the owner, and commits.
    late = await world.open()
    more = some(world, work, range(2, 4))
    await world.post(*more)
    await stopped(world, late, work.source)
    pause.resume()
    await world.until(lambda: owner.lane.state == "open")

    last = [world.event(work, key, 4) for key in "abcd"]
    await world.post(*last)
    await stopped(world, owner, work.source)
    assert faults.pending == []
    await check(world, work, events + more + last)
    await check_store(world, stores=elsewhere)
