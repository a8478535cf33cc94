"""Ask the other workers: the owner of a lane, the owners of all lanes at once, or lane after lane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from streams.brokers import READ
from streams.control.base.lane_rows import Query, cursor_of, place_of
from streams.control.base.view import Problem, WorkerView
from streams.model.application import Application

A = TypeVar("A", bound=msgspec.Struct)

#: Seconds for each worker's answer where several are asked: an answer does not wait longer for a silent one.
PATIENCE = READ
#: Requests to workers at the same time.
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Others(Generic[A]):
    """The other workers, as one question asks them.

    Attributes:
        ask: asks a worker, by its address, with a path and a query. Raises Problem.
        asked_by: the worker that asks this one, which then answers for its own lanes; None: a person or a
            program asks, for all lanes.
    """

    ask: Callable[[str, str, Query], Awaitable[A]]
    asked_by: str | None = None

    async def owner_of(self, view: WorkerView, lane: int, path: str, query: Query) -> A:
        """The answer of the owner of a lane that this worker does not run. A worker that is asked by another
        one does not ask on: two that differ about the owner would ask each other without end. Raises Problem.
        """
        owner = view.assignment.owners.get(lane)
        if owner is None or owner == view.url:
            raise Problem(
                503, "lane_not_open", f"lane {lane} is not open on any worker that this one knows of"
            )
        if self.asked_by is not None:
            raise Problem(
                503,
                "owner_moving",
                f"{self.asked_by} takes {view.url} for the owner of lane {lane}, but that is {owner}:"
                " lanes are moving, try again",
            )
        return await self.ask(owner, path, query)

    async def each(self, view: WorkerView, path: str) -> dict[str, A | Problem]:
        """Ask every other worker. Returns, by its address, its answer, or a Problem if none came in time."""
        return await self._at_once(path, {url: {} for url in other_workers(view)})

    async def _at_once(self, path: str, queries: Mapping[str, Query]) -> dict[str, A | Problem]:
        room = asyncio.Semaphore(AT_ONCE)

        async def ask_one(url: str, query: Query) -> A | Problem:
            try:
                async with room, asyncio.timeout(PATIENCE):
                    return await self.ask(url, path, query)
            except TimeoutError:
                return Problem(504, "owner_silent", f"the owner, {url}, did not answer in {PATIENCE:g} s")
            except Problem as problem:
                return problem

        answers = await asyncio.gather(*(ask_one(url, query) for url, query in queries.items()))
        return dict(zip(queries, answers, strict=True))

    async def all_lanes(
        self,
        view: WorkerView,
        here: Callable[[Sequence[int]], Awaitable[A]],
        path: str,
        query: Query,
        only: Iterable[int] | None = None,
    ) -> tuple[list[A], dict[int, str]]:
        """The answers of this worker, by `here`, and of each other owner, for its lanes; and why a lane has
        none. `only`: the lanes that are meant, if not all.
        """
        lanes = lanes_by_owner(view, range(view.application.layout.lanes) if only is None else only)
        left_out = dict.fromkeys(lanes.pop(None, ()), "this worker knows of no owner")
        own = lanes.pop(view.url, [])
        queries = {
            url: {**query, "lanes": ",".join(map(str, numbers))}
            for url, numbers in lanes.items()
            if url is not None
        }
        mine, found = await asyncio.gather(here(own), self._at_once(path, queries))
        answers = [mine]
        for url, answer in found.items():
            if isinstance(answer, Problem):
                left_out |= dict.fromkeys(lanes[url], answer.detail)
            else:
                answers.append(answer)
        return answers, left_out


async def lane_after_lane(
    app: Application,
    cursor: str,
    part: Callable[[str], Awaitable[tuple[str, bool]]],
    *,
    is_checked: bool = False,
) -> tuple[dict[int, str], str]:
    """Take part after part from a cursor on. `part` gets each cursor, and returns the next one and whether it
    has enough. A lane that does not answer is left out. Returns why, by lane, and the cursor of what follows,
    which is empty at the end.

    Raises Problem for a wrong request. If the request `is_checked` already, every problem is the lane's, such
    as that of a worker with another lane count, and leaves it out.
    """
    left_out: dict[int, str] = {}
    while True:
        lane, _ = place_of(app, {"cursor": cursor})
        try:
            cursor, enough = await part(cursor)
        except Problem as problem:
            if problem.status < 500 and not is_checked:
                raise
            left_out[lane] = problem.detail
            cursor, enough = cursor_of(app, lane, b""), False
        if enough or not cursor:
            return left_out, cursor


def beside_address(problem: Problem) -> str:
    """Why a worker does not answer, where its address is shown already."""
    texts = {"owner_silent": f"no answer in {PATIENCE:g} s", "owner_unreachable": "it cannot be reached"}
    return texts.get(problem.error, problem.detail)


def other_workers(view: WorkerView) -> list[str]:
    """The addresses of all other workers, also of those without a lane."""
    known = {*view.assignment.owners.values(), *view.assignment.members}
    return sorted(url for url in known if url and url != view.url)


def lanes_by_owner(view: WorkerView, lanes: Iterable[int]) -> dict[str | None, list[int]]:
    """Lanes by the worker that owns them; None: no owner is known."""
    found: dict[str | None, list[int]] = {}
    for number in lanes:
        owner = view.url if number in view.lanes else view.assignment.owners.get(number)
        found.setdefault(owner, []).append(number)
    return found
