"""The address of the database edge."""

from __future__ import annotations

import msgspec

from streams.web.site.web_request import Read, WebRequest


async def _database(request: WebRequest) -> msgspec.Struct:
    return await request.view.database()


ROUTES = (Read("/outbox", _database, "outbox.html"),)
