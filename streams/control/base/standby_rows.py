"""Rows of a standby, for when the owner of a lane does not answer: they may be older, and say how much."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from streams.brokers import READ
from streams.control.base.answers import StaleAnswer
from streams.control.base.asking import PASSING
from streams.control.base.view import Problem, StandbyView, WorkerView
from streams.errors import SteadfaustError
from streams.ports import Store

A = TypeVar("A")
Query = Mapping[str, str]

#: In a query: the rows of the worker's own copy are wanted. Only workers ask so.
STANDBY = "standby"
#: Seconds for the owner's answer, until standbys are read.
PATIENCE = READ


def copy_asked_for(view: WorkerView, query: Query) -> StandbyView | None:
    """The standby whose copy is read; None: the owner's rows are. Raises Problem 503 where there is none
    of the lane.
    """
    if not query.get(STANDBY):
        return None
    lane = query.get("lane", "")
    found = view.standbys.get(int(lane)) if lane.isdecimal() and len(lane) < 10 else None
    if found is None:
        raise Problem(503, "no_standby", f"{view.url} has no copy of lane {lane[:20]}")
    copy_of(found)
    return found


def copy_of(standby: StandbyView) -> Store:
    """The standby's copy of the rows. Raises Problem 503 while it does not follow."""
    if standby.store is None:
        raise Problem(503, "no_standby", f"the standby of lane {standby.number} is starting")
    return standby.store


def staleness(view: WorkerView, standby: StandbyView) -> StaleAnswer:
    """How old its copy may be."""
    age = max(0.0, view.now() - standby.fresh_at)
    return StaleAnswer(
        lane=standby.number,
        worker=view.url,
        behind=standby.behind,
        seconds=round(age, 1) if standby.fresh_at else None,
        why="",
    )


async def or_standby(
    view: WorkerView,
    lane: int,
    question: Callable[[], Awaitable[A]],
    here: Callable[[], Awaitable[A]],
    elsewhere: Callable[[str], Awaitable[A]],
) -> tuple[A, str]:
    """The owner's answer, or a standby's with the reason why the owner does not answer: standbys are read
    after a second. Where none has an answer, the owner's is waited for.

    Arguments:
        here, elsewhere: ask this worker for its own copy, and another worker, by its address, for its.

    Raises Problem: the owner's, when no standby answers either.
    """
    asking = asyncio.ensure_future(question())
    try:
        await asyncio.wait((asking,), timeout=PATIENCE)
        why = f"no answer in {PATIENCE:g} s"
        if asking.done():
            error = asking.exception()
            if not isinstance(error, Problem) or error.error not in PASSING:
                return asking.result(), ""
            why = error.detail
        others = (each for each in view.assignment.followers.get(lane, ()) if each != view.url)
        for url in (view.url, *others):
            # No copy, a broken one, or no such row in it: what the owner has is not known.
            with suppress(Problem, SteadfaustError):
                return await (here() if url == view.url else elsewhere(url)), why
        return await asking, ""
    finally:
        asking.cancel()
