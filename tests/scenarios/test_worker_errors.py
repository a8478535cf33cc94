"""A worker that cannot go on says so in one line, ends with an exit code, and loses nothing."""

import pytest

from agents.messages import Order, OrderLine, OrderPlaced
from tests.scenarios.world import APP, LANES, PARTITIONS, World
from tests.waiting import BOUND


@pytest.mark.promise("impossible-states")
def test_a_worker_with_another_partition_count_refuses_to_start(world: World) -> None:
    worker = world.start_worker(STEADFAUST_PARTITIONS="16")
    assert worker.process.wait(BOUND) == 1
    (event,) = worker.events("worker_cannot_start")
    assert event["error"] == (
        f"{APP} was first started with {PARTITIONS} partitions, this worker is set to 16:"
        f" set STEADFAUST_PARTITIONS={PARTITIONS}"
    )
    assert "Traceback" not in worker.log.read_text()


@pytest.mark.promise("impossible-states")
def test_a_worker_with_another_lane_count_stops_alone(world: World) -> None:
    keeper = world.start_worker()
    world.until_shared([keeper])
    worker = world.start_worker(STEADFAUST_LANES="2")
    assert worker.process.wait(BOUND) == 1
    assert "stop all workers before changing either" in worker.events("worker_stops")[0]["error"]
    ids = world.place("beside-a-misfit", 20)
    world.until_settled(ids)
    world.check()


@pytest.mark.promise("impossible-states")
def test_a_worker_that_is_told_no_cut_keeps_the_applications(world: World) -> None:
    keeper = world.start_worker()
    world.until_shared([keeper])
    beside = world.start_worker(STEADFAUST_PARTITIONS=None, STEADFAUST_LANES=None)
    world.until_shared([keeper, beside])
    ids = world.place("beside-defaults", 20)
    world.until_settled(ids)
    world.check()
    (kept,) = beside.events("cut_kept")
    assert (kept["partitions"], kept["lanes"]) == (PARTITIONS, LANES)


@pytest.mark.promise("retries")
def test_a_message_whose_handler_fails_waits_and_is_tried_again(world: World) -> None:
    # The gateway answers 503 five times, more often than the lane asks at once; the sixth try succeeds.
    placed = Order(
        order_id="outage-1", customer="c", lines=(OrderLine(sku="sku-1", units=1),), total_cents=500,
        card="tok_unavailable_5", country="US",
    )  # fmt: skip
    worker = world.start_worker(STEADFAUST_GATEWAY_ATTEMPTS="1", STEADFAUST_RETRY_DELAYS="0.5,1,1.5")
    world.until_shared([worker])
    world.send([(OrderPlaced(order=placed), "message-outage-1")])
    world.expected["outage-1"] = ("confirmed", 500)
    world.until_settled(["outage-1"])
    failures = worker.events("handler_failed")
    assert {failure["handler"] for failure in failures} == {"payments.capture"}
    assert {failure["kind"] for failure in failures} == {"transient"}
    assert "Later" in {failure["decision"] for failure in failures}
    assert worker.process.poll() is None
    world.check()


@pytest.mark.verify("a worker that cannot go on: those beside this cover it")
def test_a_worker_that_the_group_refuses_stops_and_says_so(world: World) -> None:
    # Over the broker's group.max.session.timeout.ms of 30 minutes.
    worker = world.start_worker(STEADFAUST_SESSION_TIMEOUT="3600")
    assert worker.process.wait(BOUND) == 1
    assert "no longer a member of its group" in worker.events("worker_stops")[0]["error"]
