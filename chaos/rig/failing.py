"""Handlers that fail for a while, as if what they need were away: before their work, or after it.

A run's worker wraps the handlers of its wiring; the handlers themselves know nothing of it.
"""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from streams.errors import TransientError
from streams.model.choreography import AnyHandler, Choreography, Route

#: The environment variable that names the file; while it is there, handlers fail with the chance it says.
FAILING = "CHAOS_FAILING"
_LOOK_EVERY = 0.1

Fail = Callable[[], None]


def failing_file(var: Path) -> Path:
    """The file of a run."""
    return var / "failing"


class HandlerFault(TransientError):
    """A fault of the run."""


class Failing:
    """Raises HandlerFault now and then while the file is there."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._chance = random.Random(str(file))
        self._rate = 0.0
        self._looked = 0.0

    def __call__(self) -> None:
        """To be called where a handler may fail."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY:
            self._looked = now
            self._rate = float(self._file.read_text()) if self._file.exists() else 0.0
        if self._rate and self._chance.random() < self._rate:
            raise HandlerFault("the run makes handlers fail")


def with_failures(wiring: Choreography) -> Choreography:
    """The same wiring, of which every handler fails when this process is told so; unchanged when it was not
    told where to look.
    """
    file = os.environ.get(FAILING)
    return wrapped(wiring, Failing(Path(file))) if file else wiring


def wrapped(wiring: Choreography, fail: Fail) -> Choreography:
    """The same wiring, of which every handler may fail before its work and after it."""
    handlers = {handler.name: _wrapped(handler, fail) for handler in wiring.handlers()}
    return Choreography(
        *(
            Route(route.message, tuple(handlers[each.name] for each in route.handlers), route.inbox)
            for route in wiring.routes.values()
        )
    )


def _wrapped(handler: AnyHandler, fail: Fail) -> AnyHandler:
    function = handler.function
    if handler.is_async:

        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            fail()
            outcome = await function(*args, **kwargs)
            fail()
            return outcome

    else:

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            fail()
            outcome = function(*args, **kwargs)
            fail()
            return outcome

    made = copy.copy(handler)
    made.function = call
    return made
