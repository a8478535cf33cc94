"""What tests share."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from streams.engine.staging import loops
from streams.environment import PREFIX
from streams.local import Stack, local_stack
from tests import effort, report

pytest_plugins = ["tests.postgres"]

effort.register_profiles()

# Where tests stand for the compiled copy, nothing may put the sources before it.
if os.environ.get("STEADFAUST_TESTS_ARE_COMPILED") and not str(loops.__file__).endswith(".so"):
    raise pytest.UsageError(f"{loops.__file__} is not compiled")

# Whoever starts the tests in the background has SIGINT ignored, and so would all that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: Whose tests have processes beside them, all of them.
WITH_A_STACK = {"browser", "integration", "scenarios"}


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(report.WANTED)
    if path and not hasattr(config, "workerinput"):  # the process that all others report to
        config.pluginmanager.register(report.Recorder(Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        folder = report.file_of(item.nodeid).partition("/")[0]
        if folder in WITH_A_STACK or {"kafka", "postgres_server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("stack")
        for mark in item.iter_markers():
            if mark.name in ("slow", "verify") and not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: say why it is marked {mark.name}")
    if hasattr(config, "workerinput"):  # one of several processes
        report.longest_first(items, report.known_seconds())


def pytest_collection_finish() -> None:
    """The garbage collector need not look at thousands of tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One broker for the whole session; tests keep apart by topic and group names of their own."""
    with local_stack(tmp_path_factory.mktemp("kafka")) as stack:
        yield stack


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings in the environment of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keep the log from the output: to draw the tracebacks of expected errors takes seconds."""
    with capture_logs():
        yield
