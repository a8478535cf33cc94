"""The order application's worker in a chaos run, with the faults that it is armed with.

`CHAOS_VERSION=2` is the application after the rolling deploy, which handles one more topic.
"""

from __future__ import annotations

import os
from dataclasses import replace

from agents.gateway.client import gateway_client
from agents.settings import OrderSettings
from chaos.load.notes import VERSION, schema, whole, with_notes
from chaos.rig.kinds import DELETE_RETENTION
from chaos.rig.worker_faults import armed_faults, install_clock, with_failures
from streams import BreakerPolicy, Worker
from streams.model.application import LaneOptions

#: Faults follow one another within seconds, and each must have an effect: a breaker that stays open for a
#: minute after one outage would keep every call from the next.
_BREAKER = BreakerPolicy(open_for=1.0, max_open_for=2.0)


class ChaosSettings(OrderSettings):
    """Those of the application, with what a run of minutes needs."""

    def lane_options(self) -> LaneOptions:
        """How lanes work. Raises SettingsError when retentions contradict each other."""
        return replace(super().lane_options(), breaker=_BREAKER, delete_retention=DELETE_RETENTION)


install_clock()
settings = ChaosSettings.read_or_exit()
app = Worker(
    with_failures(with_notes if os.environ.get(VERSION) == "2" else whole),
    settings=settings,
    schemas=schema,
    resources={"gateway": gateway_client(settings)},
    faults=armed_faults(),
)
