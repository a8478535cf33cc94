"""The command line at the pages of a worker whose lanes run in a world."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from click.testing import Result
from lane_worlds import FakeWorld, Post
from typer.testing import CliRunner

from streams.cli.main import app
from streams.control.api.routes import site
from streams.http import HttpServer
from streams.model.application import Application
from streams.model.policy.assignment import Assignment
from streams.ports import TP, Outgoing


class Pages:
    slot = 0
    stopping = False
    url = ""
    patience = 0.0
    unreadable_announcements = 0
    own_warnings = ()
    trace_url = ""
    measured = False
    choreographed = ()

    def __init__(self, world: FakeWorld, lane: Any) -> None:
        self.application: Application = world.app
        self.lanes = {0: lane}
        self.standbys: dict[int, Any] = {}
        self.throttled: dict[str, float] = {}
        self.handlers: dict[str, Any] = {}
        self.assignment = Assignment(owners={0: "here"})
        self._world = world

    def now(self) -> float:
        return float(self._world.clock.now())

    def stuck(self) -> list[Any]:
        return []

    async def operate(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        made = [Post(*to, post.key, post.value, list(post.headers)) for to, post in posts]
        await self._world.post(*made)


class CommandLine:
    """Commands of a group, as an operator gives them; time goes on while one runs."""

    def __init__(self, world: FakeWorld, url: str, *group: str) -> None:
        self._world = world
        self.url = url
        self._group = group

    async def run(self, *arguments: str, typed: str | None = None) -> Result:
        words = [*self._group, *arguments, "--worker", self.url]
        task = asyncio.create_task(asyncio.to_thread(CliRunner().invoke, app, words, typed))
        await self._world.until(task.done)
        return task.result()

    async def lines(self, *arguments: str) -> list[Any]:
        """What a command prints as JSON; what the worker logs is there, too."""
        said = (await self.run(*arguments, "--json")).stdout.splitlines()
        found = [json.loads(line) for line in said if line.startswith("{")]
        return [line for line in found if "event" not in line]


@asynccontextmanager
async def command_line(world: FakeWorld, pages: Pages, *group: str) -> AsyncIterator[CommandLine]:
    async with site(pages) as pages_of, HttpServer(pages_of) as server:  # type: ignore[arg-type]
        yield CommandLine(world, server.url, *group)
