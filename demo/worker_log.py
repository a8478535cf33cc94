"""The events of a worker's log: JSON lines, among lines of Faust and aiokafka."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class WorkerLog:
    """Follows one log, from a place on. Asking reads on; what was read is kept."""

    def __init__(self, path: Path, since: int = 0) -> None:
        self.path = path
        self._read = since
        self._events: list[Event] = []
        self._assigned: frozenset[int] = frozenset()
        self._opened: set[int] = set()

    @property
    def assigned(self) -> frozenset[int]:
        """The lanes of its last assignment."""
        self._follow()
        return self._assigned

    @property
    def opened(self) -> frozenset[int]:
        """The assigned lanes that have opened and not failed since."""
        self._follow()
        return frozenset(self._opened)

    def mark(self) -> int:
        """The log's end now, for `events`."""
        self._follow()
        return len(self._events)

    def events(self, name: str, since: int = 0) -> list[Event]:
        """The events of this name after a mark, oldest first."""
        self._follow()
        return [event for event in self._events[since:] if event.get("event") == name]

    def _follow(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]  # the last one may be half written
        self._read += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                with suppress(ValueError):  # a line of another library that looks like ours
                    self._learn(json.loads(line))

    def _learn(self, event: Event) -> None:
        self._events.append(event)
        match event:
            case {"event": "lanes_assigned", "active": list(lanes)}:
                self._assigned = frozenset(lanes)
                self._opened &= self._assigned
            case {"event": "lane_opened", "lane": int(lane)} if (
                lane in self._assigned
            ):  # not one on its way out
                self._opened.add(lane)
            case {
                "event": "lane_reopens" | "lane_waits" | "lane_stopped" | "lane_quarantined",
                "lane": int(lane),
            }:
                self._opened.discard(lane)
