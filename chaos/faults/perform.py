"""Which function performs which kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec import structs

from chaos.faults import brokers, database, edges, machines, object_store, topics, workers
from chaos.faults.ground import Ground
from chaos.rig.kinds import FaultKind, Planned
from chaos.rig.records import Happened
from chaos.rig.slowness import Slowness

_PERFORM: Mapping[FaultKind, Callable[[Planned, Ground], Awaitable[Happened]]] = {
    FaultKind.KILL_WORKER: workers.kill_worker,
    FaultKind.KILL_AT_POINT: workers.kill_at_point,
    FaultKind.FREEZE_WORKER: workers.freeze_worker,
    FaultKind.FREEZE_AT_POINT: workers.freeze_at_point,
    FaultKind.CLOCK_AHEAD: machines.clock_ahead,
    FaultKind.DISK_FULL: machines.disk_full,
    FaultKind.TOO_MANY_FILES: machines.too_many_files,
    FaultKind.KILL_BROKER: brokers.kill_broker,
    FaultKind.RESTART_BROKER: brokers.restart_broker,
    FaultKind.PAUSE_BROKER: brokers.pause_broker,
    FaultKind.KILL_COORDINATOR: brokers.kill_coordinator,
    FaultKind.ROLLING_RESTART: workers.rolling_restart,
    FaultKind.ROLLING_DEPLOY: workers.rolling_deploy,
    FaultKind.ADD_WORKER: workers.add_worker,
    FaultKind.REMOVE_WORKER: workers.remove_worker,
    FaultKind.NETWORK_CUT: edges.network_cut,
    FaultKind.NETWORK_BLACKHOLE: edges.network_blackhole,
    FaultKind.NETWORK_DELAY: edges.network_delay,
    FaultKind.GATEWAY_DOWN: edges.gateway_down,
    FaultKind.GATEWAY_DOWN_IN_LOW_TRAFFIC: edges.gateway_down_in_low_traffic,
    FaultKind.GATEWAY_SLOW: edges.gateway_slow,
    FaultKind.GATEWAY_LOSES_ANSWERS: edges.gateway_loses_answers,
    FaultKind.HANDLERS_FAIL: edges.handlers_fail,
    FaultKind.KILL_RELAY: database.kill_relay,
    FaultKind.FREEZE_RELAY: database.freeze_relay,
    FaultKind.KILL_API: database.kill_api,
    FaultKind.KILL_POSTGRES: database.kill_postgres,
    FaultKind.SILENT_POSTGRES: database.silent_postgres,
    FaultKind.LOCK_OUTBOX: database.lock_outbox,
    FaultKind.S3_DOWN: object_store.s3_down,
    FaultKind.S3_CUT: object_store.s3_cut,
    FaultKind.S3_SLOW: object_store.s3_slow,
    FaultKind.SLEEP_PAST_TOMBSTONES: workers.sleep_past_tombstones,
    FaultKind.CHANGE_LANES: workers.change_lanes,
    FaultKind.RECREATE_TOPIC: topics.recreate_topic,
    FaultKind.OUTAGE: workers.outage,
}


async def perform(planned: Planned, ground: Ground) -> Happened:
    """Inject a fault and wait until it has healed.

    Raises ChaosFailed when it was not seen to happen, or not to heal.
    """
    slowness = Slowness(lambda: [worker.pid for worker in ground.fleet.alive])
    done = await _PERFORM[planned.kind](planned, ground)
    return structs.replace(done, slowed=round(slowness.factor(), 2))
