"""What commands about tables in PostgreSQL share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from streams.postgres.database import Database
from streams.settings import Settings

T = TypeVar("T")

Url = Annotated[str, typer.Option("--url", help="postgresql://...; that of the settings unless given.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be touched.")]


def with_database(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """What the work returns, done on this database or that of the settings. Raises DatabaseUnavailable."""

    async def run() -> T:
        async with Database(url or Settings.read().postgres(), most=2, name="steadfaust") as database:
            return await work(database)

    return asyncio.run(run())
