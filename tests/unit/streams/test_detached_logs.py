"""Standard error and output of processes of which nobody reads what they say."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from streams.logs.detached import DetachedStream
from tests.waiting import BOUND, eventually

pytestmark = pytest.mark.promise("unread-output")


class Pipe:
    """A pipe whose writing end is a DetachedStream."""

    def __init__(self, most: int = 100_000) -> None:
        self.reader, writer = os.pipe()
        self.told: list[tuple[str, int, str]] = []
        with os.fdopen(writer, "w", closefd=False) as stream:
            self.stream = DetachedStream(stream, "stderr", most)
        self.stream.on_room = lambda *about: self.told.append(about)

    def read(self, size: int = 1 << 20) -> bytes:
        return os.read(self.reader, size)

    def read_in_thread(self) -> list[bytes]:
        found: list[bytes] = []

        def read() -> None:
            while data := self.read():
                found.append(data)

        threading.Thread(target=read, daemon=True).start()
        return found


def test_what_is_written_comes_in_order() -> None:
    pipe = Pipe()
    print("one", "two", file=pipe.stream)
    pipe.stream.buffer.write(b"three\n")
    print("\ud800", file=pipe.stream)
    assert pipe.stream.finish(BOUND)
    assert pipe.read() == b"one two\nthree\n\\ud800\n"


def test_a_full_pipe_holds_nobody_up_and_is_told_later() -> None:
    pipe = Pipe()
    for number in range(10_000):
        pipe.stream.write(f"line {number:06} of a log that nobody reads\n")
    dropped = pipe.stream.dropped
    assert 0 < dropped < 10_000
    assert "does not read" in pipe.stream.standing(1e9)
    assert not pipe.stream.finish(0.01)
    found = pipe.read_in_thread()
    assert pipe.stream.finish(BOUND)
    eventually(lambda: sum(lines for _, lines, _ in pipe.told) == dropped, "the dropped lines are told")
    assert {(name, why) for name, _, why in pipe.told} == {("stderr", "its reader does not read")}
    eventually(lambda: b"".join(found).count(b"\n") == 10_000 - dropped, "the others were read")
    lines = b"".join(found).splitlines()
    assert lines == sorted(lines)
    assert {len(line) for line in lines} == {len(lines[0])}, "none is torn"
    assert pipe.stream.standing(1e9) == ""


def test_a_line_that_is_printed_in_parts_is_dropped_whole() -> None:
    pipe = Pipe(most=200_000)
    pipe.stream.write("x" * 199_990 + "\n")
    print("y" * 50, file=pipe.stream)
    print("z", file=pipe.stream)
    found = pipe.read_in_thread()
    assert pipe.stream.finish(BOUND)
    eventually(lambda: b"".join(found).endswith(b"z\n"), "the last line comes")
    assert b"".join(found) == b"x" * 199_990 + b"\nz\n"


def test_a_reader_that_is_gone_raises_nothing() -> None:
    pipe = Pipe()
    os.close(pipe.reader)
    for _ in range(3):
        print("into the void", file=pipe.stream)
        assert pipe.stream.finish(BOUND)
    assert pipe.stream.dropped >= 3
    assert "Broken pipe" in pipe.stream.standing(0.0)


def test_a_full_disk_raises_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        stream = DetachedStream(full, "stderr")
        print("no space", file=stream)
        assert stream.finish(BOUND)
        assert "No space left" in stream.standing(0.0)


def test_a_pipe_that_somebody_made_non_blocking_is_waited_for() -> None:
    pipe = Pipe(most=1 << 30)
    os.set_blocking(pipe.stream.fileno(), False)
    text = "".join(f"line {number}\n" for number in range(50_000))
    pipe.stream.write(text)
    found = pipe.read_in_thread()
    assert pipe.stream.finish(BOUND)
    eventually(lambda: len(b"".join(found)) == len(text), "all of it is read")
    assert pipe.stream.dropped == 0


SPEAKS = """
import sys
from streams.logs import configure_logs
from streams.logs.detached import dropped
import structlog
configure_logs(detached=True)
log = structlog.get_logger()

class Odd:
    def __repr__(self): raise SystemExit("no repr")
    __str__ = __repr__

for number in range(int(sys.argv[1])):
    log.info("spoken", number=number)
    print("printed", number)
log.info("odd", value=Odd())
"""


def spoken(number: int, **how: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SPEAKS, str(number)], **how)  # type: ignore[call-overload,no-any-return]


def test_the_last_lines_of_a_process_are_written() -> None:
    process = spoken(100, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["number"] for line in lines[:-1]] == list(range(100))
    assert (lines[-1]["event"], lines[-1]["log_error"]) == ("odd", "SystemExit")
    assert out.splitlines()[-1] == b"printed 99"


@pytest.mark.parametrize("reads", [False, True])
def test_a_process_ends_though_nobody_reads_what_it_says(*, reads: bool) -> None:
    with spoken(50_000, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        if reads:
            process.stdout.read()
        process.stdout.close()
        assert process.wait(BOUND) == 0  # with its standard error full


def test_a_traceback_at_the_end_is_written() -> None:
    code = (
        "from streams.logs import configure_logs; configure_logs(detached=True); raise ValueError('the end')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert ended.returncode == 1
    assert "ValueError: the end" in ended.stderr


def test_commands_drop_what_they_cannot_log() -> None:
    code = (
        "from streams.logs import configure_logs; import structlog; configure_logs();"
        "[structlog.get_logger().info('said', n=n) for n in range(3)]"
    )
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, "-c", code], stderr=full, check=False)
    # Python itself may complain about what it could not flush at its end.
    assert ended.returncode in (0, 120)
