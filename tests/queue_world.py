"""What tests of queues share: a message, and a log of what was done, in the database."""

from streams.model.message import Message
from streams.postgres import Connection, Database, Job, Queue
from tests.postgres import until

LOG = "CREATE TABLE done (place bigint GENERATED ALWAYS AS IDENTITY, parcel text, key text, pid int)"


class ParcelPacked(Message, frozen=True, kw_only=True):
    TOPIC = "post.parcel.packed.v1"
    parcel: str
    customer: str = "ada"

    @property
    def key(self) -> str:
        return self.customer


PARCELS = Queue("parcels")
IN_ORDER = Queue("parcels", ordered=True)


async def put(database: Database, queue: Queue, *parcels: ParcelPacked) -> list[int]:
    async with database.transaction() as connection:
        return await queue.enqueue_many(connection, parcels)


async def note(connection: Connection, job: Job) -> None:
    """A handler: writes down what it did."""
    parcel = PARCELS.decode(job, ParcelPacked)
    await connection.execute(
        "INSERT INTO done (parcel, key, pid) VALUES ($1, $2, pg_backend_pid())",
        parcel.parcel,
        parcel.customer,
    )


async def done(database: Database, key: str | None = None) -> list[str]:
    rows = await database.pool.fetch(
        "SELECT parcel FROM done WHERE $1::text IS NULL OR key = $1 ORDER BY place", key
    )
    return [row["parcel"] for row in rows]


async def until_done(database: Database, *parcels: str) -> None:
    """Wait until no job is left; these have been handled, in this order."""
    await until(database, "SELECT count(*) = 0 FROM queue_job")
    assert await done(database) == list(parcels)
