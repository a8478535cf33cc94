"""README's handler on the core alone: every optional room is left out of the library."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from streams import Row
from streams.errors import TopicMismatch
from streams.host.client import TopicReader
from streams.model.codecs import Schemas, avro, decode_row
from streams.model.layout import changelog_topic
from streams.model.schema_versions import nothing_frozen
from tests.integration.worker_process import environment_of, start
from tests.readme import smallest_handler
from tests.waiting import BOUND, eventually_async

ROOT = Path(__file__).parents[2]
#: What holds the guarantee, what it stands on, and the start-up. All other rooms can be left out.
CORE = frozenset(("model", "engine", "kafka", "host", "worker", "system", "logs", "tracing"))
PAYMENTS = 40
PRINTED_TOPIC = "shop.order.paid.v1"
SIMULATED = """
from points import OrderPaid, app
from streams.testing.simulation.users import simulate


def workload(rng):
    for _ in range(rng.randint(1, 9)):
        yield OrderPaid(customer=rng.choice("ab"), cents=rng.randint(100, 900))


for seed in range(30):
    simulate(app.wiring, workload, seed)
"""
SENDING = """
import asyncio, sys
from points import OrderPaid, app


async def main(first, last):
    async with app.client("by-hand") as shop:
        for n in range(first, last):
            await shop.send(OrderPaid(customer="ada", cents=4900), message_id=f"payment-{n}")


asyncio.run(main(*map(int, sys.argv[1:])))
"""


def core_alone(into: Path, *more: str) -> Path:
    """Copy the core to `into`, the folder to put first on `PYTHONPATH`. `more` are rooms that a test needs
    beside it, without their `__init__`, which may name rooms that are left out.
    """

    def left_out(folder: str, names: list[str]) -> list[str]:
        rooms = {path.parent.name for path in Path(folder).glob("*/__init__.py")}
        unwanted = rooms - CORE - set(more) if Path(folder) == ROOT / "streams" else set()
        if Path(folder) == ROOT / "streams" / "tracing":
            unwanted = {"export.py"}  # to OpenTelemetry
        return [name for name in names if name == "__pycache__" or name in unwanted]

    shutil.copytree(ROOT / "streams", into / "streams", ignore=left_out)
    for room in more:
        (into / "streams" / room / "__init__.py").write_text("")
    return into


class Points(Row, frozen=True, kw_only=True):
    """The row of README's handler."""

    earned: int = 0


@pytest.fixture
def core(tmp_path: Path) -> dict[str, str]:
    """The environment of programs that find the core, README's handler and nothing else of ours."""
    tree = core_alone(tmp_path / "core", "testing")
    printed = smallest_handler()
    assert f'"{PRINTED_TOPIC}"' in printed
    # The broker is shared with the test of the printed program, which must not meet these payments.
    (tmp_path / "points.py").write_text(printed.replace(PRINTED_TOPIC, "core-alone.order.paid.v1"))
    path = os.pathsep.join((str(tree), str(tmp_path)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "STEADFAUST_VAR": str(tmp_path / "var")}


def run(program: str, core: dict[str, str], *arguments: object) -> None:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=core, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_alone_survives_what_seeds_decide(core) -> None:
    run(SIMULATED, core)


@pytest.mark.stack
async def test_a_killed_worker_of_the_core_alone_is_continued(kafka, core, tmp_path: Path) -> None:
    environment = {**environment_of("core-alone", kafka.bootstrap, tmp_path / "var"), **core}
    log = tmp_path / "worker.log"
    worker = start("points", environment, log)
    try:
        run(SENDING, environment, 0, PAYMENTS // 2)
        await eventually_async(partial(earned, kafka.bootstrap), f"the row is there; see {log}")
    finally:
        worker.kill()
        worker.wait(BOUND)
    run(SENDING, environment, 0, PAYMENTS)  # half of them again, with the same ids
    log = tmp_path / "next-worker.log"
    worker = start("points", environment, log)
    try:
        await eventually_async(
            partial(earned, kafka.bootstrap, PAYMENTS * 49), f"each payment earned its points; see {log}"
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(BOUND) == 0, log.read_text()
    assert await earned(kafka.bootstrap, PAYMENTS * 49)


async def earned(bootstrap: str, wanted: int | None = None) -> bool:
    """Whether Ada has so many points by the committed changelog; None: any."""
    codec = avro(nothing_frozen, Schemas())(Points, "points")
    found = None
    try:
        async with TopicReader(bootstrap, [changelog_topic("core-alone", "points")]) as reader:
            async for record in reader.to_end():
                found = decode_row(codec, record.value).earned
    except TopicMismatch:
        return False  # the worker has not made it yet
    return found is not None and wanted in (None, found)
