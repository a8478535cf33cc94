"""The schedule of a chaos run is repeatable, varied, and never asks for what cannot be survived."""

from collections import Counter
from itertools import pairwise
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.order_saga import OrderSaga
from chaos.driver import SESSION_TIMEOUT
from chaos.judges.stalls import AFTER, BEFORE
from chaos.rig.edge import RELAYS
from chaos.rig.kinds import (
    ALONE,
    BROKERS,
    COSTS_ATTEMPTS,
    OF_DATABASE,
    OF_WORKERS,
    POINTS,
    RARE,
    SLOTS,
    WORKERS,
    AfterKill,
    FaultKind,
    Planned,
)
from chaos.schedule import FIRST_AFTER, LAST_HEALS, LONGEST_DELAY, schedule
from streams.postgres.relay.options import RelayOptions
from streams.s3 import S3Options
from tests.effort import examples

SHORT, LONG = 240.0, 1800.0
S3_TIMEOUT = S3Options("any").read_timeout
OUTLASTS_A_SESSION = (8.99, 12.0)  # from 9 s to 12 s
#: More than how many seconds a fault must last, and how many it may.
LASTS = {
    FaultKind.GATEWAY_DOWN: (0.0, 8.0),  # a handler is patient for so long
    FaultKind.S3_CUT: (0.0, 8.0),  # retries last so long
    FaultKind.S3_DOWN: (S3_TIMEOUT, 2 * S3_TIMEOUT),  # longer than its clients wait
    FaultKind.FREEZE_WORKER: OUTLASTS_A_SESSION,
    FaultKind.FREEZE_AT_POINT: OUTLASTS_A_SESSION,
    FaultKind.NETWORK_CUT: OUTLASTS_A_SESSION,
    FaultKind.NETWORK_BLACKHOLE: OUTLASTS_A_SESSION,
    FaultKind.FREEZE_RELAY: (RelayOptions().lease, inf),
    FaultKind.KILL_POSTGRES: (0.0, 5.0),
    FaultKind.SILENT_POSTGRES: (12.0, 17.0),
    FaultKind.LOCK_OUTBOX: (4.0, 10.0),
    FaultKind.FAILING_DISK: (5.99, 30.0),
    FaultKind.UNREAD_LOGS: (SESSION_TIMEOUT, 12.0),
    FaultKind.GROUP_DENIED: (SESSION_TIMEOUT, 12.0),
}
OF_BROKERS = {
    FaultKind.KILL_BROKER,
    FaultKind.RESTART_BROKER,
    FaultKind.PAUSE_BROKER,
    FaultKind.KILL_COORDINATOR,
}
seeds = st.integers(min_value=0, max_value=2**32)
lengths = st.sampled_from([30.0, 90.0, SHORT, 400.0])
runs = st.builds(schedule, seeds, lengths)


def scenes(faults: list[Planned]) -> list[list[Planned]]:
    found: list[list[Planned]] = []
    for fault in faults:
        if fault.beside:
            found[-1].append(fault)
        else:
            found.append([fault])
    return found


@given(seeds, lengths)
def test_the_same_seed_gives_the_same_faults(seed: int, seconds: float) -> None:
    assert schedule(seed, seconds) == schedule(seed, seconds)


def test_another_seed_gives_other_faults() -> None:
    assert len({tuple(schedule(seed, SHORT)) for seed in range(50)}) == 50


@given(seeds, lengths)
def test_faults_come_in_order_and_leave_time_before_and_after(seed: int, seconds: float) -> None:
    faults = schedule(seed, seconds)
    times = [fault.at for fault in faults]
    assert faults
    assert times == sorted(times)
    assert times[0] >= FIRST_AFTER
    assert len(scenes(faults)) == 1 or times[-1] < seconds - LAST_HEALS


@given(runs)
def test_a_fault_hits_what_is_there(faults: list[Planned]) -> None:
    slots = set(range(WORKERS))
    for fault in faults:
        if fault.kind is FaultKind.ADD_WORKER:
            assert fault.slot not in slots
            assert fault.slot is not None
            slots.add(fault.slot)
            assert len(slots) <= SLOTS
        elif fault.slot is not None:
            assert fault.slot in slots
        if fault.kind is FaultKind.REMOVE_WORKER or fault.after is AfterKill.NEVER:
            slots.discard(fault.slot or 0)
        assert len(slots) >= WORKERS - 1


@given(runs)
def test_two_workers_are_soon_three_again(faults: list[Planned]) -> None:
    workers = WORKERS
    for scene in scenes(faults):
        if workers < WORKERS:
            assert scene[0].kind is FaultKind.ADD_WORKER
        for fault in scene:
            workers += fault.kind is FaultKind.ADD_WORKER
            workers -= fault.kind is FaultKind.REMOVE_WORKER or fault.after is AfterKill.NEVER


@given(runs)
def test_what_comes_at_a_time_can_be_survived(faults: list[Planned]) -> None:
    for scene in scenes(faults):
        kinds = {fault.kind for fault in scene}
        assert len(scene) <= 2
        assert len(scene) == 1 or not ALONE & kinds
        assert sum(fault.kind in OF_BROKERS for fault in scene) <= 1
        assert all(fault.broker in (None, *range(1, BROKERS + 1)) for fault in scene)
        hit = [f.slot for f in scene if f.slot is not None and f.kind is not FaultKind.ADD_WORKER]
        assert len(hit) == len(set(hit)) < WORKERS
        of_database = [fault for fault in scene if fault.kind in OF_DATABASE]
        assert len(of_database) <= 1
        assert all(fault.slot is fault.broker is None for fault in of_database)
        assert all(fault.which in range(RELAYS) for fault in of_database)
    assert sum(fault.kind is FaultKind.ROLLING_DEPLOY for fault in faults) <= 1
    assert sum(fault.kind in RARE for fault in faults) <= 1


@given(runs)
def test_calm_follows_as_what_was_before_asks_for(faults: list[Planned]) -> None:
    for scene, following in pairwise(scenes(faults)):
        if all(any(fault.kind in COSTS_ATTEMPTS for fault in each) for each in (scene, following)):
            assert following[0].calm > LONGEST_DELAY, "a last attempt would meet the next fault"
        if len(scene) == 1 and scene[0].kind in (FaultKind.KILL_WORKER, FaultKind.ROLLING_RESTART):
            assert following[0].calm > AFTER
        assert following[0].calm > BEFORE


@given(runs)
def test_a_fault_lasts_as_long_as_its_kind_may(faults: list[Planned]) -> None:
    for fault in faults:
        more_than, at_most = LASTS.get(fault.kind, (-1.0, inf))
        assert more_than < fault.seconds <= at_most


@given(seeds)
def test_a_lone_outage_outlasts_every_saga_deadline(seed: int) -> None:
    (scene,) = [
        scene for scene in scenes(schedule(seed, LONG)) if FaultKind.OUTAGE in {f.kind for f in scene}
    ]
    (fault,) = scene
    assert fault.slot is None
    assert fault.seconds > max(step.timeout for stage in OrderSaga.stages for step in stage)


@settings(max_examples=examples(30))
@given(st.integers(min_value=0, max_value=10**6))
def test_ten_short_runs_have_every_kind_fairly(first: int) -> None:
    runs = [schedule(seed, SHORT) for seed in range(first, first + 10)]
    times = Counter(fault.kind for run in runs for fault in run)
    kinds = set(FaultKind) - {FaultKind.OUTAGE}
    assert set(times) == kinds
    assert sum(times.values()) >= 3 * len(kinds - set(RARE))
    assert all(len({fault.kind for fault in run}) >= 6 for run in runs)


@settings(max_examples=examples(20))
@given(seeds)
def test_a_long_run_has_every_kind_and_point(seed: int) -> None:
    faults = schedule(seed, LONG)
    times = Counter(fault.kind for fault in faults)
    once = {FaultKind.ROLLING_DEPLOY, FaultKind.OUTAGE, *RARE}
    assert all(times[kind] >= 2 for kind in set(FaultKind) - once)
    assert all(times[kind] == 1 for kind in once)
    assert {fault.point for fault in faults if fault.kind is FaultKind.KILL_AT_POINT} == set(POINTS)
    assert {fault.after for fault in faults if fault.kind is FaultKind.KILL_WORKER} == set(AfterKill)
    assert any(fault.beside for fault in faults)


def test_database_faults_stand_beside_worker_and_broker_faults() -> None:
    beside: set[tuple[bool, bool]] = set()
    for seed in range(50):
        for scene in scenes(schedule(seed, SHORT)):
            kinds = {fault.kind for fault in scene}
            if kinds & OF_DATABASE:
                beside.add((bool(kinds & OF_WORKERS), bool(kinds & OF_BROKERS)))
    assert beside == {(False, False), (True, False), (False, True)}
