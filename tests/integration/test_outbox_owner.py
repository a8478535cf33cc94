"""Whose the outbox is, on a real PostgreSQL."""

import asyncio
from contextlib import suppress

import pytest

from streams.postgres import Connection, Database
from streams.postgres.cdc import RelayKind, claim_outbox, hand_over, outbox_owner, slot_lag
from streams.postgres.cdc.lifecycle import ensure_publication
from streams.postgres.errors import DatabaseUnavailable, OutboxOwned
from streams.postgres.relay import RelayOptions
from streams.postgres.relay.session import RelaySession

POLL, CDC = RelayKind.POLL, RelayKind.CDC


async def claim(database: Database, relay: RelayKind) -> RelayKind | None:
    async with database.acquire() as connection:
        with suppress(OutboxOwned):
            await claim_outbox(connection, relay)
        return await outbox_owner(connection)


async def test_relays_of_the_kind_that_asks_first_share_the_outbox(connection: Connection) -> None:
    assert await outbox_owner(connection) is None
    await claim_outbox(connection, POLL)
    await claim_outbox(connection, POLL)
    assert await outbox_owner(connection) is POLL


@pytest.mark.promise("outbox-owner")
@pytest.mark.parametrize(
    ("first", "second", "command"), [(POLL, CDC, "start --take-over"), (CDC, POLL, "stop")]
)
async def test_the_other_kind_is_refused_and_told_what_to_do(
    connection: Connection, first: RelayKind, second: RelayKind, command: str
) -> None:
    await claim_outbox(connection, first)
    with pytest.raises(OutboxOwned, match=f"set STEADFAUST_OUTBOX={first}, .* `steadfaust cdc {command}`"):
        await claim_outbox(connection, second)


async def test_of_two_kinds_that_ask_at_once_one_gets_it(database: Database) -> None:
    seen = await asyncio.gather(*(claim(database, kind) for kind in (POLL, CDC) * 4))
    assert len(set(seen)) == 1
    assert seen[0] is not None


async def test_who_has_it_loses_it_when_it_is_handed_over(connection: Connection) -> None:
    await claim_outbox(connection, POLL)
    await hand_over(connection, CDC)
    with pytest.raises(OutboxOwned, match="belongs to change data capture"):
        await claim_outbox(connection, POLL)
    await claim_outbox(connection, CDC)
    await hand_over(connection, POLL)
    await claim_outbox(connection, POLL)


async def test_without_a_connector_there_is_no_slot(connection: Connection) -> None:
    assert await slot_lag(connection) is None


async def test_only_new_rows_and_heartbeats_are_passed_on(connection: Connection) -> None:
    assert await connection.fetchval("SELECT count(*) FROM pg_publication") == 0, "no migration makes one"
    for _ in range(2):
        await ensure_publication(connection)
    tables = await connection.fetch("SELECT tablename FROM pg_publication_tables")
    kinds = await connection.fetchrow(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication"
    )
    assert {row["tablename"] for row in tables} == {"outbox", "cdc_heartbeat"}
    assert kinds is not None
    assert tuple(kinds) == (True, False, False, False)


async def test_a_polling_relay_ends_when_handed_over(database: Database, postgres_url: str) -> None:
    session = await RelaySession(postgres_url, RelayOptions(), lambda: None).open()
    try:
        await session.balance(set())
        async with database.acquire() as connection:
            await hand_over(connection, CDC)
        with pytest.raises(DatabaseUnavailable, match="it opens another one"):
            await session.balance(set())
    finally:
        await session.close()
    again = RelaySession(postgres_url, RelayOptions(), lambda: None)
    try:
        with pytest.raises(OutboxOwned, match="belongs to change data capture"):
            await again.open()
    finally:
        await again.close()
