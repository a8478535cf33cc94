"""Workers are added and removed while another one is in the middle of its recovery."""

import signal

from tests.scenarios.steady import SteadyLoad
from tests.scenarios.world import LANES, World
from tests.waiting import eventually


def test_workers_come_and_go_while_another_one_recovers(world: World) -> None:
    removed = world.start_worker()
    world.until_shared([removed])
    faults = world.var / "recovering.log"
    with SteadyLoad(world, "recovering") as load:
        eventually(lambda: world.settled(load.ids) > 50, "there is something to recover")
        recovering = world.start_worker(
            STEADFAUST_FAULTS="recovering:1:stop", STEADFAUST_FAULTS_LOG=str(faults)
        )
        eventually(faults.exists, "a new worker stands still in the middle of recovering its lanes")
        added = world.start_worker()
        assert removed.stop() == 0
        eventually(lambda: added.lanes() == set(range(LANES)), "the one that is left owns all lanes")
        recovering.signal(signal.SIGCONT)
        world.until_shared([recovering, added])
        between = len(load.ids)
        eventually(lambda: len(load.ids) > between + 20, "the load flows on")
    world.until_settled(load.ids)
    world.check()
    assert world.running() == [recovering, added]
    assert [worker for worker in world.workers if worker.events("lane_error")] == []
