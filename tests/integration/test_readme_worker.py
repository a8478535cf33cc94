"""The smallest handler of README, as it is printed, by a real worker on real Kafka."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from urllib.error import URLError
from urllib.request import urlopen

from tests.readme import sending, smallest_handler
from tests.waiting import eventually

BIN = Path(sys.executable).parent


def test_the_smallest_handler_of_readme_runs_as_printed(kafka, tmp_path: Path) -> None:
    (tmp_path / "points.py").write_text(smallest_handler())
    (tmp_path / "send.py").write_text(
        "import asyncio\nfrom points import OrderPaid, app\n\n"
        f"async def main():\n{indent(sending(), '    ')}\nasyncio.run(main())\n"
    )
    environment = {
        **os.environ,
        "STEADFAUST_APP_ID": "readme",
        "STEADFAUST_BOOTSTRAP": kafka.bootstrap,
        "STEADFAUST_VAR": str(tmp_path / "var"),
        "STEADFAUST_PARTITIONS": "2",
        "STEADFAUST_LANES": "2",
        "STEADFAUST_WEB_PORT": "0",
    }
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [str(BIN / "faust"), "-A", "points", "worker", "-l", "warn"],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        url = tmp_path / "var" / "workers" / "readme" / "slot-0" / "url"
        eventually(lambda: url.exists() and page(f"{url.read_text()}/health/ready"), f"ready; see {log}")
        subprocess.run([sys.executable, "send.py"], cwd=tmp_path, env=environment, check=True, timeout=60)
        rows = f"{url.read_text()}/api/tables/points/rows?key=ada"
        eventually(lambda: '"earned": 49' in page(rows) or '"earned":49' in page(rows), f"a row; see {log}")
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, log.read_text()


def page(url: str) -> str:
    """Its text; empty when nobody answers yet."""
    try:
        with urlopen(url, timeout=60) as response:
            return str(response.read().decode())
    except (URLError, OSError):
        return ""
