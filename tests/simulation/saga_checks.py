"""More invariants of sagas: their deadlines, further starts, and those that nothing disturbs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from streams.engine.staging.keys import TIMER, split_lane_key
from streams.engine.staging.timers import timer_key
from streams.model.envelope import ID
from streams.model.layout import LANE
from streams.saga.messages import IGNORED
from streams.saga.state import SagaRow
from streams.testing.simulation.judge import written
from streams.testing.simulation.plan import Finding
from streams.testing.simulation.run import Run
from tests.simulation.sagas import NAME, Family

#: Steps of a plan that disturb no saga.
PEACE = frozenset(("transfer", "stray", "expired", "heal", "compact", "rebalance", "look"))
#: Seconds that a step may take where nothing disturbs it, and a whole saga; with room.
PATIENT, LATE = 5.0, 25.0


def saga_checks(run: Run, of: Family, sagas: Mapping[str, SagaRow], timeout: float) -> Iterator[Finding]:
    """What does not hold. `timeout`: how long a step may take, in seconds."""
    yield from _deadlines(run, sagas)
    yield from _further_starts(run, of, sagas)
    if timeout >= PATIENT:
        yield from _undisturbed(run, of, sagas)


def _deadlines(run: Run, sagas: Mapping[str, SagaRow]) -> Iterator[Finding]:
    """An ended saga has no deadline."""
    timers: dict[bytes, bool] = {}
    for record in run.cluster.visible(run.app.layout.changelog(LANE)):
        kind, name = split_lane_key(record.key or b"")
        if kind == TIMER and name.partition(b"\0")[0].endswith(f"{NAME}_saga".encode()):
            timers[name] = record.value is not None
    for name, waits in timers.items():
        saga = sagas.get(timer_key(name).decode())
        if waits and saga is not None and saga.ended:
            yield Finding("an ended saga has no deadline", f"{saga.saga_id} is {saga.status}: {name!r}")


def _further_starts(run: Run, of: Family, sagas: Mapping[str, SagaRow]) -> Iterator[Finding]:
    """Each message that would start a saga again, with other content, is one entry in its log, and one
    answer.
    """
    # Of two messages with one id either may be the one that counts: the first may have gone to a partition
    # that is not its key's, and come after the second.
    differs: defaultdict[tuple[str, bytes], set[bool]] = defaultdict(set)
    for record in written(run, of.wanted.TOPIC):
        key, message_id = (record.key or b"").decode(), dict(record.headers)[ID]
        if key in sagas:
            differs[key, message_id].add(_amount(record.value) != _amount(sagas[key].start))
    least, most = (Counter(key for (key, _), each in differs.items() if how(each)) for how in (all, any))
    found = Counter(
        (record.key or b"").decode()
        for record in run.cluster.visible(of.transition.TOPIC)
        if "would start it again" in json.loads(record.value or b"")["detail"].removeprefix(IGNORED)
    )
    answered = Counter((record.key or b"").decode() for record in written(run, of.conflict.TOPIC))
    for key, saga in sagas.items():
        wanted = f"{least[key]} to {most[key]}"
        if not least[key] <= found[key] <= most[key]:
            where = f"{saga.saga_id}: {found[key]} of {wanted}"
            yield Finding("a further start of a saga is in its log", where)
        if answered[key] != found[key]:
            where = f"{saga.saga_id}: {answered[key]} of {found[key]}"
            yield Finding("a further start of a saga is answered", where)


def _undisturbed(run: Run, of: Family, sagas: Mapping[str, SagaRow]) -> Iterator[Finding]:
    """A saga that reserves its money is completed where nothing disturbs it, and soon."""
    times: dict[str, list[float]] = defaultdict(list)
    for record in run.cluster.visible(of.transition.TOPIC):
        entry = json.loads(record.value or b"")
        if entry["after"] != entry["before"]:
            times[entry["saga_id"]].append(entry["time"])
    steps = run.plan.steps
    begins = {step.what[0]: step.at for step in steps if step.kind == "transfer"}
    quiet = min((step.at for step in steps if step.kind not in PEACE), default=inf) - LATE
    troubled = {step.what[0] for step in steps if step.kind == "transfer" and step.what[4]}
    for own, saga in sagas.items():
        if begins.get(own, inf) > quiet:
            continue
        first = [step.error for step in (saga.find("limit"), saga.find("reserve")) if step is not None]
        is_refused = any("too much" in error or "no money" in error for error in first)
        if saga.status != "completed" and own not in troubled and not is_refused:
            yield Finding("a saga that nothing disturbs is completed", f"{saga.saga_id} is {saga.status}")
        took = max(times[saga.saga_id]) - min(times[saga.saga_id])
        if own not in troubled and took > LATE:
            yield Finding("a saga that nothing disturbs is not late", f"{saga.saga_id} took {took:.0f} s")


def _amount(start: Any) -> int:
    return int(json.loads(start or b"")["amount"])
