"""A worker and commands on a machine that has nothing but Python: no /etc, users, zones, /tmp or home."""

import os
import subprocess
import sys
from pathlib import Path

from tests.bare_machine import ROOT, UID, BareMachine
from tests.integration.worker_process import BIN, ask, page
from tests.waiting import BOUND, eventually

PAGES = ["/", "/login", "/topics", "/tables", "/dead-letters", "/sagas", "/waiting", "/outbox", "/handlers"]


def settings(bootstrap: str) -> dict[str, str]:
    return {
        "STEADFAUST_APP_ID": "bare", "STEADFAUST_BOOTSTRAP": bootstrap, "STEADFAUST_VAR": "/home/var",
        "STEADFAUST_PARTITIONS": "2", "STEADFAUST_LANES": "2", "STEADFAUST_WEB_PORT": "0",
        "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def test_a_worker_and_commands_need_no_files_of_the_machine(kafka, tmp_path: Path) -> None:
    machine = BareMachine(tmp_path)
    told = settings(kafka.bootstrap)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        command = machine.command(str(BIN / "faust"), "-A", "examples.first_handler", "worker", "-l", "warn")
        worker = subprocess.Popen(
            command, env={"PATH": os.environ["PATH"], **told}, stdout=output, stderr=output
        )
    try:
        file = machine.home / "var" / "workers" / "bare" / "slot-0" / "url"
        eventually(lambda: file.exists() and page(f"{file.read_text()}/health/ready"), f"ready; see {log}")
        url = file.read_text()
        for path in PAGES:
            status, kind, text = ask(url + path)
            assert (status, kind) in ((200, "text/html"), (404, "text/html")), (path, status, text)
        assert ask(f"{url}/")[0] == ask(f"{url}/metrics")[0] == 200
        steadfaust = str(BIN / "steadfaust")
        listed = machine.run(steadfaust, "dlq", "list", **told)
        assert listed.returncode in (0, 3), listed.stderr
        paused = machine.run(steadfaust, "handler", "pause", "no.such", "--why", "a test", **told)
        assert "Traceback" not in paused.stderr
    finally:
        worker.terminate()
        assert worker.wait(BOUND) == 0, log.read_text()


def test_a_user_without_a_name_is_its_number(tmp_path: Path) -> None:
    machine = BareMachine(tmp_path)
    code = "from streams.cli.options import by_whom; print(by_whom(''))"
    done = machine.run(sys.executable, "-c", code, PYTHONPATH=str(ROOT))
    assert done.stdout.startswith(f"uid:{UID}@"), done.stderr


CONNECTS = """
import asyncio
from streams.errors import SettingsError
from streams.postgres import Database
try:
    asyncio.run(Database("postgresql://127.0.0.1:1/shop").open())
except SettingsError as error:
    print(error)
"""


def test_a_database_url_without_a_user_is_refused_with_words(tmp_path: Path) -> None:
    machine = BareMachine(tmp_path)
    done = machine.run(sys.executable, "-c", CONNECTS, PYTHONPATH=str(ROOT))
    assert "put the user into the URL" in done.stdout, done.stderr


def test_up_names_its_cache_where_there_is_no_home(tmp_path: Path) -> None:
    machine = BareMachine(tmp_path)
    told = settings("127.0.0.1:1")
    steadfaust = str(BIN / "steadfaust")
    done = machine.run(steadfaust, "up", "--var", "/home/var", **told)
    assert "STEADFAUST_CACHE" in done.stderr
    assert "Traceback" not in done.stderr
    done = machine.run(steadfaust, "up", "--var", "/home/var", HOME="/", **told)
    assert "STEADFAUST_CACHE" in done.stderr
    assert "Traceback" not in done.stderr
