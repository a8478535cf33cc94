"""Real workers of Faust's for tests, and what their pages answer."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.waiting import BOUND, eventually

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def environment_of(app_id: str, bootstrap: str, var: Path, **settings: object) -> dict[str, str]:
    """Of a worker whose application is in this project: two lanes, on any port, unless told otherwise."""
    told = {"APP_ID": app_id, "BOOTSTRAP": bootstrap, "VAR": var, "PARTITIONS": 2, "LANES": 2, "WEB_PORT": 0}
    settings = {f"STEADFAUST_{name}": str(value) for name, value in (told | settings).items()}
    return {**os.environ, "PYTHONPATH": str(ROOT), **settings}


def start(
    app: str, environment: dict[str, str], log: Path, *, before: tuple[str, ...] = (), cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """A worker of the module `app`; what it says is in the log."""
    command = [*before, str(BIN / "faust"), "-A", app, "worker", "-l", "warn"]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=environment, cwd=cwd, stdout=output, stderr=output)


@contextmanager
def working(app: str, environment: dict[str, str], cwd: Path | None = None) -> Iterator[Path]:
    """A worker that is stopped at the end, and then exits well; its log is beside its files."""
    log = Path(environment["STEADFAUST_VAR"]) / "worker.log"
    log.parent.mkdir(exist_ok=True)
    worker = start(app, environment, log, cwd=cwd)
    try:
        yield log
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(BOUND) == 0, log.read_text()


def address_of(environment: dict[str, str]) -> str:
    """Where the worker in slot 0 answers; empty until it is ready."""
    workers = Path(environment["STEADFAUST_VAR"]) / "workers" / environment["STEADFAUST_APP_ID"]
    url = workers / "slot-0" / "url"
    return url.read_text() if url.exists() and page(f"{url.read_text()}/health/ready") else ""


def until_ready(environment: dict[str, str], log: Path) -> str:
    """Wait until the worker in slot 0 is ready; where it answers, also when it is not for a moment later."""
    found: list[str] = []
    eventually(lambda: found.append(address_of(environment)) or found[-1], f"ready; see {log}")
    return found[-1]


def ask(url: str, token: str = "") -> tuple[int, str, str]:
    """Status, content type and body; 0 when nobody answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=BOUND) as response:
            return response.status, response.headers.get_content_type(), response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers.get_content_type(), error.read().decode()
    except OSError:
        return 0, "", ""


def page(url: str) -> str:
    """Its text; empty when nobody answers, or not well."""
    status, _, text = ask(url)
    return text if status == 200 else ""
