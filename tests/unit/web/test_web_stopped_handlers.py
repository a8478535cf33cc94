"""Why a saga does not go on: the nearest handler on its way that is paused or fails."""

from types import SimpleNamespace
from typing import Any

import pytest

from agents.worker import CHOREOGRAPHIES
from streams.web.overview.flow_answers import HandlerPart, HandlerShown
from streams.web.overview.stopped_handlers import stopped_handlers

WIRING = next(iter(CHOREOGRAPHIES.values()))
RESERVE = {"inventory.commands.reserve": 1}
EVENTS = dict.fromkeys(
    ("inventory.stock.reserved.v1", "payments.payment.captured.v1", "shipping.shipment.scheduled.v1"), 0
)


@pytest.mark.parametrize(
    ("steps", "pending", "stopped", "found"),
    [
        (RESERVE, [*RESERVE], ["inventory-steps.reserve"], ["inventory-steps.reserve"]),
        (RESERVE, [*RESERVE], ["inventory.reserve_line"], ["inventory.reserve_line"]),  # by SKU, not by order
        (RESERVE, [*RESERVE], ["payment-steps.capture"], []),  # that is the way of a later step
        (EVENTS, [*EVENTS][1:], ["payments.capture", "inventory.gather"], ["payments.capture"]),
        (EVENTS, [*EVENTS], ["inventory.reserve_line"], ["inventory.reserve_line"]),
        (EVENTS, [*EVENTS][1:], ["inventory.reserve_line"], []),  # that step is over
        (EVENTS, [], ["payments.capture"], []),
    ],
)
def test_a_saga_names_the_nearest_stopped_handler(steps, pending, stopped, found):
    shown: Any = SimpleNamespace(
        steps=[SimpleNamespace(name=name, action=name, attempts=tried) for name, tried in steps.items()],
        saga=SimpleNamespace(pending=pending, waits_for=()),
    )
    handlers = [
        HandlerShown(
            handler=each.name,
            topics=[],
            numbers=HandlerPart(
                handler=each.name, paused=2 if each.name in stopped else 0, pause="By ann: strike"
            ),
            p50=None,
            p95=None,
        )
        for each in WIRING.handlers()
    ]
    app: Any = SimpleNamespace(wiring=WIRING)
    texts = [f"It waits for {name}, which is paused, by ann: strike" for name in found]
    assert stopped_handlers(app, shown, handlers) == texts
