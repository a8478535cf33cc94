"""A worker of a queue as a process of its own: `python -m tests.integration.queue_process URL`.

It says on standard output which parcel it has in hands, then waits forever with one that is named `wait`.
"""

import asyncio
import sys

from streams.postgres import Connection, Database, Job, QueueOptions, QueueWorker
from tests.queue_world import PARCELS, ParcelPacked, note


async def work(url: str) -> None:
    async def say(connection: Connection, job: Job) -> None:
        parcel = PARCELS.decode(job, ParcelPacked).parcel
        await note(connection, job)
        sys.stdout.write(f"{parcel}\n")
        sys.stdout.flush()
        if parcel == "wait":
            await asyncio.Event().wait()

    async with Database(url) as database:
        await QueueWorker(database, PARCELS, say, options=QueueOptions(lease=1.0, concurrency=1)).run()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
