"""The address of the database edge."""

from __future__ import annotations

import msgspec

from streams.web.site.asked import Asked, Read


async def _database(asked: Asked) -> msgspec.Struct:
    return await asked.view.database()


ROUTES = (Read("/outbox", _database, "outbox.html"),)
