"""A pipe between a worker and its log file, whose reader can stop reading, as a stuck log shipper does."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from pathlib import Path

_LOOK_MS = 50
_CHUNK = 1 << 16
#: Complete lines, so that the worker's own stay whole; a write of up to `PIPE_BUF` bytes is all or nothing.
_FILLING = (b"#" * 1023 + b"\n", b"\n")
_WRITE = "1"
_STREAMS = ("0x1", "0x2")


class LogPipe:
    """Copies what is written to `writer` into a file until every writer has ended.

    Attributes:
        writer: the end for the process; call `handed_over` once it has it.
    """

    def __init__(self, log: Path) -> None:
        self._reader, self.writer = os.pipe()
        self._log = log.open("wb")
        self._may_read = threading.Event()
        self._may_read.set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._copy, name=f"read-{log.name}", daemon=True)
        self._thread.start()

    def handed_over(self) -> None:
        """Only the process can write now, so its end is the end of the pipe."""
        os.close(self.writer)

    def stop_reading(self) -> None:
        """Read no more, and fill the pipe."""
        self._may_read.clear()
        while self._thread.is_alive() and not self._stopped.wait(_LOOK_MS / 1000):
            pass
        if not self._thread.is_alive():
            return
        # Another opening of the pipe: non-blocking here, and blocking as before in the process.
        filler = os.open(f"/proc/self/fd/{self._reader}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            for lines in _FILLING:
                with suppress(BlockingIOError):
                    while True:
                        os.write(filler, lines)
        finally:
            os.close(filler)

    def read_again(self) -> None:
        """Copy what has waited, and go on."""
        self._stopped.clear()
        self._may_read.set()

    def close(self, within: float) -> None:
        """Copy the last lines of a process that has ended, `within` so many seconds."""
        self.read_again()
        self._thread.join(within)

    def _copy(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        with self._log:
            while True:
                if not self._may_read.is_set():
                    self._stopped.set()
                    self._may_read.wait()
                if not poll.poll(_LOOK_MS):
                    continue
                data = os.read(self._reader, _CHUNK)
                if not data:
                    break
                self._log.write(data)
                self._log.flush()
        os.close(self._reader)


def waits_for_reader(pid: int) -> bool:
    """Whether a thread of the process stands in write(2) to its standard output or error."""
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # the thread has ended
            number, _, arguments = (thread / "syscall").read_text().partition(" ")
            if number == _WRITE and arguments.split()[0] in _STREAMS:
                return True
    return False
