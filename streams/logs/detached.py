"""Standard error and output whose writers never wait and never get an error.

Lines are queued, and a thread writes them. When the reader of a pipe has stopped reading, they wait up to a
bound; further ones, and those that cannot be written, are dropped and counted. So a lane does not stand still
because nobody reads its log, or because the log's disk is full.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TextIO

#: Bytes that wait to be written, at most.
MOST_WAITING = 4 * 1024 * 1024
#: How long a process that ends lets its last lines be written, in seconds.
LAST_LINES = 2.0
#: For so long after lines were dropped health says so, in seconds.
SAID_FOR = 60.0
#: Between looks at a pipe of which somebody has made the writing end non-blocking, in milliseconds.
_LOOK_MS = 1000
#: So many bytes go into one write, at most: what a pipe has room for.
_AT_ONCE = 64 * 1024


class DetachedStream(io.TextIOBase):
    """Stands for a stream of text with a file descriptor.

    Attributes:
        dropped: lines that were not written.
        trouble: why the last write failed; empty: it did not.
    """

    def __init__(self, stream: TextIO, name: str, most: int = MOST_WAITING) -> None:
        """`name` is what people call the stream."""
        super().__init__()
        self.name = name
        self.dropped = 0
        self.trouble = ""
        #: Called in the writing thread when there is room again, with how many lines were dropped, and why.
        self.on_room: Callable[[str, int, str], None] = lambda *_: None
        self._descriptor = stream.fileno()
        self._tty = stream.isatty()
        self._most = most
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        # Reentrant: a finalizer may write while this thread writes.
        self._lock = threading.RLock()
        self._waiting = self._told = 0
        self._why = ""
        self._dropped_at = -SAID_FOR
        self._skips = False
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forked)

    # -- what a stream has -----------------------------------------------------------------------------

    encoding = "utf-8"
    errors = "backslashreplace"

    @property
    def buffer(self) -> _Bytes:
        """The stream for bytes."""
        return _Bytes(self)

    def fileno(self) -> int:
        """The descriptor behind it."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._tty

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """Take text, or drop it. Returns at once."""
        self.put(text.encode(self.encoding, self.errors))
        return len(text)

    def put(self, data: bytes) -> None:
        """The same for bytes."""
        with self._lock:
            if not self._take(data):
                return
            self._waiting += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"log-{self.name}", daemon=True)
                self._thread.start()
        self._queue.put(data)

    def flush(self) -> None:
        """Nothing to do: what was written is on its way. `finish` waits for it."""

    def close(self) -> None:
        """Stay open, as the descriptor does."""

    # -- what a process asks ---------------------------------------------------------------------------

    def finish(self, within: float) -> bool:
        """Wait until all that was taken is written, `within` so many seconds. Whether it is."""
        if self._thread is None or not self._thread.is_alive():
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(within)

    def standing(self, now: float) -> str:
        """What is wrong, in words for people; empty: nothing is. `now` as `time.monotonic` has it."""
        with self._lock:
            if self._waiting <= self._most // 2 and not self.trouble and now - self._dropped_at >= SAID_FOR:
                return ""
            why, dropped = self.trouble or self._why or _UNREAD, self.dropped
        return f"{dropped} lines for {self.name} were dropped, and others may be: {why}"

    # -- within ----------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> bool:
        """Whether there is room. The end of a line that was dropped is dropped with it."""
        if self._skips and data == b"\n":
            self._skips = False
            return False
        self._skips = False
        if self._waiting + len(data) <= self._most or data == b"\n":
            return True
        self._skips = not data.endswith(b"\n")
        self._drop(data, _UNREAD)
        return False

    def _drop(self, data: bytes, why: str) -> None:
        with self._lock:
            self.dropped += max(1, data.count(b"\n"))
            self._why = why
            self._dropped_at = time.monotonic()

    def _run(self) -> None:
        while True:
            data = self._queue.get()
            if isinstance(data, threading.Event):
                data.set()
                continue
            written = self._deliver(data)
            with self._lock:
                self._waiting -= len(data)
                lost, has_room = self.dropped - self._told, self._waiting <= self._most // 2
                if not (written and has_room and lost):
                    continue
                self._told = self.dropped
            self.on_room(self.name, lost, self._why)

    def _deliver(self, data: bytes) -> bool:
        """Write, and wait for the reader. False: the rest was dropped."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view[:_AT_ONCE]) :]
            except BlockingIOError:
                ready = select.poll()
                ready.register(self._descriptor, select.POLLOUT)
                ready.poll(_LOOK_MS)
            except OSError as error:
                self.trouble = f"{error.strerror or error}"
                self._drop(bytes(view), self.trouble)
                return False
        self.trouble = ""
        return True

    def _forked(self) -> None:
        """A child has no such thread, and must not write what its parent has yet to."""
        self._lock, self._queue, self._thread, self._waiting = threading.RLock(), SimpleQueue(), None, 0


class _Bytes(io.RawIOBase):
    def __init__(self, stream: DetachedStream) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Take bytes, or drop them. Returns at once."""
        self._stream.put(bytes(data))
        return len(data)


_UNREAD = "its reader does not read"
_detached: dict[str, DetachedStream] = {}


def detach(tell: Callable[[str, int, str], None]) -> None:
    """From now on, this process writes to its standard error and output without waiting, also what Python
    itself prints there. `tell` is called when lines were dropped and there is room again, with the stream's
    name, how many they were, and why.
    """
    for name in ("stderr", "stdout"):
        stream = getattr(sys, name)
        if isinstance(stream, DetachedStream) or not _has_descriptor(stream):
            continue
        stream.flush()
        _detached[name] = made = DetachedStream(stream, name)
        made.on_room = tell
        setattr(sys, name, made)
    atexit.unregister(finish)
    atexit.register(finish)


def finish(within: float = LAST_LINES) -> None:
    """Let the last lines be written, `within` so many seconds for each stream."""
    for stream in _detached.values():
        stream.finish(within)


def standing() -> list[str]:
    """A warning for each stream of which lines are dropped, or were a moment ago."""
    now = time.monotonic()
    return [text for stream in _detached.values() if (text := stream.standing(now))]


def dropped() -> dict[str, int]:
    """How many lines were dropped since this process began, by stream."""
    return {"stderr": 0, "stdout": 0} | {name: stream.dropped for name, stream in _detached.items()}


class QuietStream:
    """A stream that never fails, for commands: what cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, as far as that is possible."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # nobody reads it, the disk is full, or it is closed
            return len(text)

    def flush(self) -> None:
        """Write what is buffered, as far as that is possible."""
        try:
            self._stream.flush()
        except (OSError, ValueError):  # as above
            return


def _has_descriptor(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.fileno() >= 0
    except (OSError, ValueError):  # a test's, in memory
        return False
