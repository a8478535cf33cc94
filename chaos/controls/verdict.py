"""Whether a control has shown that the checker can go red: pure."""

from __future__ import annotations

import msgspec

from chaos.controls.control import Control
from chaos.controls.scenarios import Scenario
from chaos.controls.trial import Trial


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario as it is, and with its control. `passed`: the one was green, the other red as it must."""

    control: Control
    passed: bool
    intact: Trial
    crippled: Trial


class ControlsReport(msgspec.Struct, frozen=True):
    """All of them."""

    passed: bool
    controls: list[Played]


def judge(scenario: Scenario, intact: Trial, crippled: Trial) -> Played:
    """Both had their fault; the one is green; of the other, what the protection is there for is red."""
    confirmed = bool(intact.happened.confirmed and crippled.happened.confirmed)
    red = any(each.name == scenario.finds for each in crippled.red)
    return Played(
        control=scenario.control,
        passed=confirmed and not intact.red and red,
        intact=intact,
        crippled=crippled,
    )
