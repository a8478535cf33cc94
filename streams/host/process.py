"""A worker's process under Faust's worker command: how it starts, and that it ends."""

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

#: Seconds until a worker that does not stop is ended: a join under way can hang.
SHUTDOWN_LIMIT = 30.0
#: For what is still to be done when all services have ended, in seconds.
LAST_TURNS = 0.05
EXIT_HUNG = 70
EXIT_FAILED = 1


class HostedApp(Protocol):
    """Requests of the process to its application.

    Attributes:
        process: by which the application ends the process.
        fatal: the error, which was logged, for which the process ends.
    """

    process: WorkerProcess | None
    fatal: BaseException | None

    def take_slot(self) -> Any:
        """Take the lowest free slot, before anything is started."""


class WorkerProcess(FaustWorker):
    """Faust's worker, which takes a slot before it starts, and whose shutdown is bounded."""

    def __init__(self, app: HostedApp, *services: Any, **options: Any) -> None:
        app.take_slot()
        app.process = self
        #: The worker stops, after a signal or an error.
        self.ending = False
        options["redirect_stdouts"] = False
        options |= {"stdout": sys.stdout, "stderr": sys.stderr}  # Faust has those of its import
        super().__init__(app, *services, **options)
        if not self.stdout.isatty():
            self.spinner = None  # its control codes would stand before log lines

    def _schedule_shutdown(self, signal: Any) -> None:
        self.ending = True
        _end_hung_process()
        super()._schedule_shutdown(signal)

    def give_up(self) -> None:
        """Stop as on a signal; the exit code will tell that something was wrong."""
        self._schedule_shutdown(SIGTERM)

    async def _sentinel_task(self) -> None:
        """Let closed connections go. Faust takes a second for it, in which this worker's lanes rest."""
        await asyncio.sleep(LAST_TURNS)

    def stop_and_shutdown(self) -> None:
        """End with code 1, and without Faust's traceback, when an error that was logged is the reason."""
        super().stop_and_shutdown()
        if self.app.fatal is not None:
            raise SystemExit(EXIT_FAILED)


def _end_hung_process() -> None:
    def end() -> None:
        try:
            # Of every thread's loop: the group's coordination has its own.
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
    """Stack of a task: its coroutines, outermost first, each with its line."""
    path = []
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        path.append(f"{coroutine.__qualname__}:{frame.f_lineno}")
        coroutine = coroutine.cr_await
    return " > ".join(path) or repr(task.get_coro())
