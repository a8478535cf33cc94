"""A standby of lane 0 in a process of its own, so that a test can stop it by a signal.

Prints a line whenever its copy is newly known to be current: the time of that.
"""

import asyncio
import signal
import sys
from pathlib import Path

from lane_workloads import reminding

from streams.engine.life.standby import Standby
from streams.host.rocksdb.store import RocksStore, RocksStores
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.model.application import Application, LaneOptions
from streams.model.codecs import json_without_schema
from streams.model.layout import Layout
from streams.ports import Ports
from streams.system import SystemClock
from streams.testing.faults import NoFaults


class Watched(RocksStores):
    """Keeps hold of what it has opened."""

    opened: RocksStore | None = None

    def open(self, lane: int) -> RocksStore:
        self.opened = super().open(lane)
        return self.opened


async def main(bootstrap: str, name: str, directory: str, retention: str) -> None:
    work = reminding(name)
    lane_options = LaneOptions(delete_retention=float(retention))
    app = Application(Layout(name, 1, 1), work.wiring, json_without_schema, lane_options=lane_options)
    cluster = KafkaCluster(bootstrap, KafkaOptions(fetch_wait=0.1))
    stores = Watched(Path(directory))
    standby = Standby(app, 0, Ports(cluster, stores, SystemClock(), NoFaults()))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, standby.stop)
    running = asyncio.create_task(standby.run())
    told = None
    while not running.done():
        await asyncio.wait([running], timeout=0.05)
        current = stores.opened and stores.opened.current_at()
        if current != told:
            told = current
            sys.stdout.write(f"{current}\n")
            sys.stdout.flush()
    await cluster.close()
    running.result()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
