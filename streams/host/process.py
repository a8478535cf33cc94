"""A worker's process under Faust's worker command, from its start to a bounded shutdown."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from signal import SIGTERM
from typing import Any, Protocol

import structlog
from faust.worker import Worker as FaustWorker

from streams.logs.detached import finish

log = structlog.get_logger(__name__)

#: Seconds after which a process that does not stop is ended. A join under way can hang.
SHUTDOWN_LIMIT = 30.0
#: Seconds for closing connections after all services have ended.
LAST_TURNS = 0.05
EXIT_HUNG = 70
EXIT_FAILED = 1


class HostedApp(Protocol):
    """What the process needs from its application.

    Attributes:
        process: the process, for the application to end it.
        fatal: the logged error because of which the process ends; None without one.
    """

    process: WorkerProcess | None
    fatal: BaseException | None

    def take_slot(self) -> Any:
        """Take the lowest free slot, before anything is started."""


class WorkerProcess(FaustWorker):
    """Faust's worker that takes a slot before it starts, and limits the time of a shutdown."""

    def __init__(self, app: HostedApp, *services: Any, **options: Any) -> None:
        app.take_slot()
        app.process = self
        #: Whether the worker is stopping, after a signal or an error.
        self.ending = False
        options["redirect_stdouts"] = False
        options |= {"stdout": sys.stdout, "stderr": sys.stderr}  # Faust's defaults are from its import
        super().__init__(app, *services, **options)
        if not self.stdout.isatty():
            self.spinner = None  # its control codes would precede log lines

    def _schedule_shutdown(self, signal: Any) -> None:
        self.ending = True
        _end_hung_process()
        super()._schedule_shutdown(signal)

    def give_up(self) -> None:
        """Stop as after a signal. With `app.fatal` set, the exit code is EXIT_FAILED."""
        self._schedule_shutdown(SIGTERM)

    async def _sentinel_task(self) -> None:
        """Give closed connections time to end. Faust waits a second, during which the lanes do not run."""
        await asyncio.sleep(LAST_TURNS)

    def stop_and_shutdown(self) -> None:
        """Stop. If a logged error is the reason, exit with EXIT_FAILED and without Faust's traceback."""
        super().stop_and_shutdown()
        if self.app.fatal is not None:
            raise SystemExit(EXIT_FAILED)


def _end_hung_process() -> None:
    def end() -> None:
        try:
            # Include the event loops of other threads, such as the one for the group membership.
            tasks = [each for each in gc.get_objects() if type(each) is asyncio.Task and not each.done()]
            waiting = sorted(_waits_at(task) for task in tasks)
            log.critical(
                "worker_hung_at_shutdown", waited=SHUTDOWN_LIMIT, action="process ended", waiting=waiting
            )
        finally:
            finish()
            os._exit(EXIT_HUNG)

    timer = threading.Timer(SHUTDOWN_LIMIT, end)
    timer.daemon = True
    timer.start()


def _waits_at(task: asyncio.Task[Any]) -> str:
    """The stack of a task: its coroutines, outermost first, with line numbers."""
    path = []
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        path.append(f"{coroutine.__qualname__}:{frame.f_lineno}")
        coroutine = coroutine.cr_await
    return " > ".join(path) or repr(task.get_coro())
