"""Who relays the outbox: polling relays, or change data capture. Never both: the database says who."""

from __future__ import annotations

from enum import StrEnum

from streams.postgres.database import Connection
from streams.postgres.errors import OutboxOwned
from streams.postgres.replication_slot import SlotLag, drop_slot, slot_lag
from streams.postgres.statements import statements

_SQL = statements("cdc/cdc.sql")


class RelayKind(StrEnum):
    """How rows of the outbox come to Kafka; the values of the setting `outbox`."""

    POLL = "poll"
    CDC = "cdc"


#: The advisory lock of a polling relay that is there; its number is its session's process id.
MEMBER = 0x6F75_7401

_TITLES = {RelayKind.POLL: "polling relays", RelayKind.CDC: "change data capture"}


async def claim_outbox(connection: Connection, relay: RelayKind) -> None:
    """Take the outbox for this kind of relay, if it has no owner. Relays ask before each round: it costs one
    short query, and the outbox may have been handed over meanwhile.

    Raises OutboxOwned when it is the other kind's.
    """
    owner = await outbox_owner(connection)
    if owner is None:
        await connection.execute(_SQL["claim"], relay)
        owner = await outbox_owner(connection)
    if owner is not relay:
        command = "start --take-over" if relay is RelayKind.CDC else "stop"
        raise OutboxOwned(
            f"the outbox in this database belongs to {_TITLES[owner or relay]}: set STEADFAUST_OUTBOX={owner}"
            f", or hand it over with `steadfaust cdc {command}`"
        )


async def outbox_owner(connection: Connection) -> RelayKind | None:
    """The kind of relay that owns the outbox; None: none has claimed it yet."""
    row = await connection.fetchrow(_SQL["owner"])
    return None if row is None else RelayKind(row["relay"])


async def cdc_beginnings(connection: Connection) -> int:
    """How often change data capture has begun with the table, at a new slot: some rows came twice then."""
    return int(await connection.fetchval(_SQL["beginnings"]) or 0)


async def hand_over(connection: Connection, to: RelayKind) -> None:
    """Give the outbox to this kind of relay, from any owner.

    Rows that the one has published and not marked yet are published by the other again, with the same id.
    From change data capture it also takes the slot, so that no log is kept without a reader.

    Raises OutboxOwned while a connector still reads the slot.
    """
    if to is RelayKind.POLL:
        lag = await slot_lag(connection)
        if lag is not None and lag.active:
            raise OutboxOwned("a connector still reads the outbox: stop it first, with `steadfaust cdc stop`")
        await drop_slot(connection)
    await connection.execute(_SQL["hand_over"], to)


async def why_nobody_relays(connection: Connection, slot: SlotLag | None) -> str:
    """Why rows stay in the outbox, as the database knows it; empty: a relay publishes them."""
    if await outbox_owner(connection) is RelayKind.CDC:
        if slot is not None:
            return ""  # it warns itself
        return (
            "the outbox belongs to change data capture, which has no replication slot: nothing is relayed."
            " `steadfaust outbox relay` with STEADFAUST_OUTBOX=cdc, or `steadfaust cdc start`, begins again"
            " with the rows that wait"
        )
    if await connection.fetchval(_SQL["polling_relays"], MEMBER):
        return ""
    return "no relay runs: start `steadfaust outbox relay`"
