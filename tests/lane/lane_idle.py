"""What a lane that has nothing to do holds: nothing."""

from __future__ import annotations

from lane_worlds import FakeWorld

from streams.lane.lane import Lane


def held_by(lane: Lane) -> dict[str, object]:
    """All that counts messages, bytes, keys or changes of a lane, where it is not as in one that has just
    opened; its state while it is not open.
    """
    session = lane._session
    if session is None:
        return {"state": lane.state}
    order = session.staging.order
    found: dict[str, object] = {
        "held": order.held,
        "held_bytes": order.held_bytes,
        "backlog": order.backlog,
        "backlog_bytes": order.backlog_bytes,
        "in_commit": order.in_commit,
        "in_commit_bytes": order.in_commit_bytes,
        "overlay": len(session.staging),
        "in_flight": session.dispatch.in_flight,
        "tasks": session.dispatch.tasks,
    }
    for name, gate in session.waiting.gates.items():
        found[f"{name} running"] = len(gate.running)
        found[f"{name} under way"] = gate.under_way
        found[f"{name} queues"] = len(gate.queues)
        found[f"{name} unread"] = (
            len(gate.unread._queues) + len(gate.unread._schemas) + len(gate.unread._ready)
        )
        found[f"{name} probes"] = len(gate.breaker._probes)
    claims = lane._app.claims
    if claims is not None:
        found["payloads"] = claims.held.held
        found["payloads waiting"] = claims.held.waiters
    return {name: count for name, count in found.items() if count}


async def until_idle(world: FakeWorld, lane: Lane) -> None:
    """Wait until a lane holds nothing any more, for some minutes of its time."""
    for _ in range(2000):
        if not held_by(lane):
            return
        await world.clock.advance(0.1)
    assert held_by(lane) == {}
