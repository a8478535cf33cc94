"""Where change data capture ends: the connector and its slot go, and polling relays have the outbox."""

from __future__ import annotations

import asyncio

from streams.postgres.cdc.connect import Connect
from streams.postgres.database import Connection
from streams.postgres.errors import ConnectUnavailable, OutboxOwned
from streams.postgres.outbox_owner import RelayKind, hand_over
from streams.postgres.replication_slot import slot_lag

ENDED_WITHIN = 60.0
"""Seconds for the connector to let go of the log."""

_LOOK = 1.0
"""Between two looks: longer than a step of the relay, which may have made the connector again meanwhile."""


async def end(connection: Connection, connect: Connect) -> None:
    """Remove the connector and its slot, and give the outbox to polling relays.

    A connector that was removed still reads for a moment, and a relay that looks after it makes it again
    until it sees whose the outbox is. So this is done until it lasts.

    Raises ConnectUnavailable: call it again.
    """
    problem = ""
    try:
        async with asyncio.timeout(ENDED_WITHIN):
            while True:
                try:
                    await connect.remove()
                    await hand_over(connection, RelayKind.POLL)
                    await asyncio.sleep(_LOOK)
                    if await connect.status() is None and await slot_lag(connection) is None:
                        return
                except (ConnectUnavailable, OutboxOwned) as error:
                    problem = str(error)
                    await asyncio.sleep(_LOOK)
    except TimeoutError:
        raise ConnectUnavailable(
            f"the connector does not end within {ENDED_WITHIN:.0f} s: {problem or 'it is made again'}"
        ) from None
