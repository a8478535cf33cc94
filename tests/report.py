"""What a run of the tests says of itself: failures, and seconds by file. `tests.gate` reads it."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
#: Of the last run on this machine; the table that README.md beside this has is made of such a one.
LAST = HERE.parent / "var" / "test" / "run.json"
README = HERE / "README.md"
#: The environment variable that names the file to write. None is written by a plain `pytest`.
WANTED = "STEADFAUST_TEST_REPORT"

_ROW = re.compile(r"^\| `(\w+/[\w/]*test_\w+\.py)` \| (\d+) \|", re.MULTILINE)


class Failure(NamedTuple):
    """A test that failed. `stack`: it needs Kafka, PostgreSQL, S3, a browser or other processes."""

    nodeid: str
    stack: bool
    text: str


class Recorder:
    """A plugin that writes what has happened when the session ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()
        self._passed = 0
        self._failures: dict[str, Failure] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration
        self._passed += report.when == "call" and report.passed
        if report.failed and report.nodeid not in self._failures:
            failure = Failure(report.nodeid, "stack" in report.keywords, report.longreprtext)
            self._failures[report.nodeid] = failure

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # In several processes a file that cannot be read stops nothing, and none of its tests is reported.
        if report.failed:
            self._failures[report.nodeid] = Failure(report.nodeid, False, report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        found = {
            "passed": self._passed,
            "failures": [failure._asdict() for failure in self._failures.values()],
            "seconds": {file: round(seconds, 1) for file, seconds in self._seconds.most_common()},
        }
        self._path.write_text(json.dumps(found, indent=1))


def failures_of(report: Mapping[str, Any]) -> list[Failure]:
    """The failures of a written report."""
    return [Failure(**each) for each in report["failures"]]


def known_seconds() -> Mapping[str, float]:
    """Seconds by file: of the last run on this machine, and of what was not in it as the table has them."""
    listed = {file: float(seconds) for file, seconds in _ROW.findall(README.read_text())}
    try:
        return listed | json.loads(LAST.read_text())["seconds"]
    except (OSError, ValueError, KeyError):
        return listed


def longest_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Sort tests by what their file takes; those of a file stay together, in their order. A long file that
    starts last would leave the other processes idle.
    """
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0.0))


def file_of(nodeid: str) -> str:
    """The file of a test, below `tests`."""
    return nodeid.partition("::")[0].removeprefix("tests/")
