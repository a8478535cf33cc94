"""The pipe of a worker's log: nothing is read while a fault lasts, and every line comes afterwards."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.rig.log_pipe import waits_for_reader
from chaos.rig.processes import ChildProcess
from tests.waiting import BOUND, eventually

#: Logs a line for each that it reads the number of from its directory.
TALKS = """
import json, pathlib, sys, time
count, wanted = 0, pathlib.Path(sys.argv[1])
while True:
    while count < int(wanted.read_text() or 0):
        count += 1
        print(json.dumps({"event": "counted", "count": count}), flush=True)
    time.sleep(0.01)
"""


class Talker:
    def __init__(self, var: Path) -> None:
        self._wanted = var / "wanted"
        self.count(0)
        command = [sys.executable, "-SEc", TALKS, str(self._wanted)]
        self.process = ChildProcess("talker", var / "talker.log", command, {})

    def count(self, to: int) -> None:
        self._wanted.with_suffix(".new").write_text(str(to))
        self._wanted.with_suffix(".new").replace(self._wanted)

    @property
    def counted(self) -> list[int]:
        return [event["count"] for event in self.process.log.events("counted")]


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[Talker]:
    made = Talker(tmp_path)
    yield made
    made.process.kill("the test is over")


def test_every_line_comes_when_the_log_is_read_again(talker: Talker) -> None:
    talker.count(3)
    eventually(lambda: talker.counted == [1, 2, 3], "its first lines")
    assert not waits_for_reader(talker.process.pid)
    talker.process.output.stop_reading()
    talker.count(50)
    eventually(lambda: waits_for_reader(talker.process.pid), "it stands in write(2)")
    assert talker.counted == [1, 2, 3]
    talker.process.output.read_again()
    eventually(lambda: talker.counted == list(range(1, 51)), "all lines, whole and once")
    assert not waits_for_reader(talker.process.pid)


def test_a_killed_process_leaves_its_last_lines(talker: Talker) -> None:
    talker.count(3)
    eventually(lambda: talker.counted == [1, 2, 3], "its first lines")
    talker.process.output.stop_reading()
    talker.process.kill("while nobody reads")
    filling = talker.process.log.path.read_bytes().splitlines()[3:]
    assert filling, "what the pipe was filled with is read when the process has ended"
    assert not any(json.dumps({"event": "counted"})[:-1].encode() in line for line in filling)
    talker.process.output.close(BOUND)
    talker.process.output.stop_reading()  # of a process that has ended there is nothing to stop
