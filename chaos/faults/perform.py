"""Which function performs which kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec import structs

from chaos.faults import brokers, database, edges, machines, object_store, topics, workers
from chaos.faults.ground import Ground
from chaos.rig.kinds import Kind, Planned
from chaos.rig.records import Happened
from chaos.rig.slowness import Slowness

_PERFORM: Mapping[Kind, Callable[[Planned, Ground], Awaitable[Happened]]] = {
    Kind.KILL_WORKER: workers.kill_worker,
    Kind.KILL_AT_POINT: workers.kill_at_point,
    Kind.FREEZE_WORKER: workers.freeze_worker,
    Kind.FREEZE_AT_POINT: workers.freeze_at_point,
    Kind.CLOCK_AHEAD: machines.clock_ahead,
    Kind.DISK_FULL: machines.disk_full,
    Kind.TOO_MANY_FILES: machines.too_many_files,
    Kind.KILL_BROKER: brokers.kill_broker,
    Kind.RESTART_BROKER: brokers.restart_broker,
    Kind.PAUSE_BROKER: brokers.pause_broker,
    Kind.KILL_COORDINATOR: brokers.kill_coordinator,
    Kind.ROLLING_RESTART: workers.rolling_restart,
    Kind.ROLLING_DEPLOY: workers.rolling_deploy,
    Kind.ADD_WORKER: workers.add_worker,
    Kind.REMOVE_WORKER: workers.remove_worker,
    Kind.NETWORK_CUT: edges.network_cut,
    Kind.NETWORK_BLACKHOLE: edges.network_blackhole,
    Kind.NETWORK_DELAY: edges.network_delay,
    Kind.GATEWAY_DOWN: edges.gateway_down,
    Kind.GATEWAY_DOWN_IN_LOW_TRAFFIC: edges.gateway_down_in_low_traffic,
    Kind.GATEWAY_SLOW: edges.gateway_slow,
    Kind.GATEWAY_LOSES_ANSWERS: edges.gateway_loses_answers,
    Kind.HANDLERS_FAIL: edges.handlers_fail,
    Kind.KILL_RELAY: database.kill_relay,
    Kind.FREEZE_RELAY: database.freeze_relay,
    Kind.KILL_API: database.kill_api,
    Kind.KILL_POSTGRES: database.kill_postgres,
    Kind.SILENT_POSTGRES: database.silent_postgres,
    Kind.LOCK_OUTBOX: database.lock_outbox,
    Kind.S3_DOWN: object_store.s3_down,
    Kind.S3_CUT: object_store.s3_cut,
    Kind.S3_SLOW: object_store.s3_slow,
    Kind.SLEEP_PAST_TOMBSTONES: workers.sleep_past_tombstones,
    Kind.CHANGE_LANES: workers.change_lanes,
    Kind.RECREATE_TOPIC: topics.recreate_topic,
    Kind.OUTAGE: workers.outage,
}


async def perform(planned: Planned, ground: Ground) -> Happened:
    """Inject a fault and wait until it has healed.

    Raises ChaosFailed when it was not seen to happen, or not to heal.
    """
    slowness = Slowness(lambda: [worker.pid for worker in ground.fleet.alive])
    done = await _PERFORM[planned.kind](planned, ground)
    return structs.replace(done, slowed=round(slowness.factor(), 2))
