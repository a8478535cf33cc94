"""What tests of change data capture share that run without Kafka Connect."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streams.postgres import Connection, Database
from streams.postgres.cdc import ConnectorStatus
from streams.postgres.cdc.lifecycle import ensure_publication
from streams.postgres.replication_slot import SLOT_PREFIX


class FakeConnect:
    """A cluster with a connector in a state; what it was asked for."""

    def __init__(self, connector: ConnectorStatus) -> None:
        self.asked: list[str] = []
        self.connector = connector

    async def status(self) -> ConnectorStatus:
        return self.connector

    async def configure(self, _: object) -> None:
        self.asked.append("configure")

    async def restart_failed(self) -> None:
        self.asked.append("restart")


async def slot_of(connection: Connection) -> str:
    """The name of the replication slot that the connector of this database reads; takes a pool, too."""
    return SLOT_PREFIX + str(await connection.fetchval("SELECT current_database()"))


@asynccontextmanager
async def of_a_connector(database: Database) -> AsyncIterator[Connection]:
    """A session in a database whose outbox a connector relays, with its slot, which nobody reads."""
    await database.pool.execute("INSERT INTO outbox_owner (relay) VALUES ('cdc')")
    slot = await slot_of(database.pool)
    await database.pool.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    try:
        async with database.acquire() as connection:
            await ensure_publication(connection)
            yield connection
    finally:
        await database.pool.execute("SELECT pg_drop_replication_slot($1)", slot)


async def pass_all(connection: Connection) -> None:
    """Confirm what is in the log, as a connector does that has relayed it."""
    await connection.execute("SET synchronous_commit = on")
    await connection.execute("SELECT pg_logical_emit_message(true, 'test', 'beyond')")
    await advance(connection, await connection.fetchval("SELECT pg_current_wal_flush_lsn()"))


async def advance(connection: Connection, place: object) -> None:
    """Confirm the log up to a place."""
    await connection.execute("SELECT pg_replication_slot_advance($1, $2)", await slot_of(connection), place)
