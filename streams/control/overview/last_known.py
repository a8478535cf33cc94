"""Last known state of the other workers, also while they are silent: the last counts of each lane, and which
workers and standbys were there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from streams.control.base.view import WorkerView
from streams.control.overview.flow_answers import LaneCounts, Warned, WorkerPart, worker_link
from streams.model.envelope import rfc3339
from streams.units import DAY

#: Seconds between two looks at the members of the group.
INTERVAL = 2.0


class LastKnown:
    """Remembers counts and members. Times in epoch seconds.

    Attributes:
        counts: of each lane the newest ones, whichever worker has counted it.
    """

    def __init__(self, view: WorkerView) -> None:
        self.counts: dict[int, LaneCounts] = {}
        self._view = view
        #: Workers that do not answer: since when.
        self._silent: dict[str, float] = {}
        self._members: frozenset[str] = frozenset()
        #: Of a worker that has left: since when, and how many there were before.
        self._lost: dict[str, tuple[float, int]] = {}
        self._standbys: dict[int, int] = {}
        self._without: dict[int, float] = {}

    async def run(self) -> None:
        """Look at the members of the group again and again."""
        while True:
            self.look()
            await asyncio.sleep(INTERVAL)

    def take(self, parts: Sequence[WorkerPart]) -> list[WorkerPart]:
        """Take the counts of workers that have answered; the parts, with how long the others are silent."""
        now = self._view.now()
        self._silent = {part.url: self._silent.get(part.url, now) for part in parts if part.silent}
        for part in parts:
            for counts in part.counts:
                known = self.counts.get(counts.lane)
                if known is None or known.at <= counts.at:
                    self.counts[counts.lane] = counts
        return [
            replace(part, since=rfc3339(self._silent[part.url])) if part.silent else part for part in parts
        ]

    def look(self) -> None:
        """Note which workers and standbys are there, and which are gone since."""
        assignment, now = self._view.assignment, self._view.now()
        if not assignment.owners:  # it is not in its group: that says nothing of the others
            return
        members = frozenset({*assignment.members, *assignment.owners.values(), self._view.url} - {""})
        for gone in self._members - members:
            self._lost[gone] = now, len(self._members)
        self._members = members
        self._lost = {
            url: (since, before)
            for url, (since, before) in self._lost.items()
            if url not in members and len(members) < before and now - since < DAY
        }
        for lane in range(self._view.application.layout.lanes):
            there = len(assignment.followers.get(lane, ()))
            most = self._standbys[lane] = max(there, self._standbys.get(lane, 0))
            if there >= most:
                self._without.pop(lane, None)
            else:
                self._without.setdefault(lane, now)

    def warnings(self) -> list[Warned]:
        """Warnings of workers and standbys that are lost."""
        self.look()
        found = [
            Warned(
                text=f"The worker {_name(url)} is lost since {rfc3339(since)}: there were {before} workers."
                " Start it again, or another one",
                link="/#workers",
                where="the workers",
            )
            for url, (since, before) in sorted(self._lost.items())
        ]
        if self._without:
            lanes = ", ".join(map(str, sorted(self._without)))
            s = "s" if len(self._without) > 1 else ""
            found.append(
                Warned(
                    text=f"Lane{s} {lanes} lack{'' if s else 's'} a standby since"
                    f" {rfc3339(min(self._without.values()))}: if an owner dies, the next one may have to"
                    " read the lane's changelogs from Kafka first",
                    link=worker_link(self._view.url),
                    where="who follows which lane",
                )
            )
        return found


def _name(url: str) -> str:
    return url.partition("://")[2] or url
