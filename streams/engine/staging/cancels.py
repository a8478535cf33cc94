"""Warn when a handler cancels a timer that it never set. Only the handler that set a timer can cancel it."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Arrival
from streams.engine.staging.changes import TIMERS
from streams.engine.staging.keys import TIMER
from streams.engine.staging.timers import timer_name
from streams.model.layout import LANE

log = structlog.get_logger(__name__)

#: Timer names remembered for a handler. A handler with more makes them from data, and is not checked.
MOST_NAMES = 1000


class Cancels:
    """Warns once for each handler. It remembers the timer names that a handler has set under any key since
    the worker started, because a timer that has fired is gone, and may still be cancelled.
    """

    def __init__(self, staging: StagingArea) -> None:
        self._staging = staging
        self._app = staging.app
        #: Names by handler; None: the handler is no longer checked.
        self._names: dict[str, set[str] | None] = staging.app.timer_names

    def note_set(self, handler: str, name: str) -> None:
        """Remember a timer that a handler sets."""
        names = self._names.setdefault(handler, set())
        if names is not None:
            names.add(name)
            if len(names) > MOST_NAMES:
                self._names[handler] = None

    def look(self, arrival: Arrival, handler: str, cancelled: Mapping[str, bytes]) -> None:
        """Check the timers that a handler cancels: the lane's names of timers, by the handler's names."""
        for name, timer in cancelled.items():
            names = self._names.setdefault(handler, set())
            if names is None:
                return
            if name in names:
                continue
            if self._is_set(arrival, timer):
                self.note_set(handler, name)
                continue
            self._names[handler] = None
            owner = self._owner(arrival, name)
            whose = f"{owner} has set one, and only it can cancel that" if owner else "no handler has set one"
            log.warning(
                "timer_unknown",
                handler=handler,
                timer=name,
                key=arrival.key.decode("utf-8", "backslashreplace"),
                action=f"nothing was cancelled, for this handler has set no timer of that name under this"
                f" key: {whose}. A timer belongs to the handler that sets it (docs/add-a-service.md, Timers)",
            )

    def _owner(self, arrival: Arrival, name: str) -> str:
        """Another handler that has a timer of this name under the key; empty: none."""
        for other in self._app.handlers.values():
            if self._is_set(arrival, timer_name(other.name_bytes, arrival.key, name)):
                return other.name
        return ""

    def _is_set(self, arrival: Arrival, timer: bytes) -> bool:
        prefix = arrival.entry.prefix
        staged = self._staging.get(LANE, prefix + TIMER + timer)
        if staged is not None:
            return staged.value is not None
        return self._staging.store.get(TIMERS, prefix + timer) is not None
