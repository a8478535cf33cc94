"""What Faust has on an app, tried by a worker: of Faust's own app where STOCK is set, else of a Worker.

What works is told to a topic, by name.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import faust

from streams import Worker, choreography

SAID, SEEN = (f"{name}.{'STOCK' in os.environ}" for name in ("features.said", "features.seen"))


class Named(faust.Record):
    """Whom to greet."""

    name: str


def _app() -> Any:
    if "STOCK" not in os.environ:
        return Worker(choreography())
    return faust.App(
        "stock",
        broker=f"kafka://{os.environ['STEADFAUST_BOOTSTRAP']}",
        datadir=os.environ["STEADFAUST_VAR"],
        topic_partitions=1,
        web_enabled=False,
    )


app = _app()
seen = app.topic(SEEN, value_serializer="json")


@app.timer(0.5, on_leader=True)
async def lead() -> None:
    """Tell that a timer of the leader's fires."""
    await seen.send(value="leader")


@app.agent(app.topic(SAID, value_type=Named), name="features.greet")
async def greet(stream: Any) -> Any:
    """Answer."""
    async for named in stream:
        await seen.send(value="passed")
        yield f"hello {named.name}"


@app.task
async def ask() -> None:
    """Ask, and tell whether an answer comes."""
    try:
        async with asyncio.timeout(10):
            assert await greet.ask(Named(name="ann")) == "hello ann"
    except TimeoutError:
        await seen.send(value="silent")
    else:
        await seen.send(value="answered")


@app.on_rebalance_complete.connect
async def rebalanced(*_: Any, **__: Any) -> None:
    """Tell that a rebalance has ended."""
    await seen.send(value="rebalanced")
