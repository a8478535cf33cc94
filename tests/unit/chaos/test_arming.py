"""A worker is armed while it runs: nothing happens before, then its script, at the reach that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.rig.worker_faults import ArmedFaults, arm, log_of, script_of
from streams.errors import OutcomeUnknown


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return script_of(tmp_path, "worker-1")


async def test_reaches_count_from_when_it_was_armed(script: Path) -> None:
    faults = ArmedFaults(script)
    for _ in range(5):
        await faults.reach("sent")
    arm(script, "sent:2:raise")
    await faults.reach("begun")
    await faults.reach("sent")
    with pytest.raises(OutcomeUnknown):
        await faults.reach("sent")
    await faults.reach("sent")


async def test_it_writes_first_and_the_next_worker_is_unarmed(script: Path) -> None:
    arm(script, "committed:1:raise")
    with pytest.raises(OutcomeUnknown):
        await ArmedFaults(script).reach("committed")
    assert log_of(script).read_text().startswith("committed:1:raise ")
    await ArmedFaults(script).reach("committed")


async def test_it_can_be_armed_again(script: Path) -> None:
    faults = ArmedFaults(script)
    for _ in range(2):
        arm(script, "sent:1:raise")
        with pytest.raises(OutcomeUnknown):
            await faults.reach("sent")
