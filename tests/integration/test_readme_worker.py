"""The smallest handler of README, as it is printed, by a real worker on real Kafka."""

import subprocess
import sys
from pathlib import Path
from textwrap import indent

from tests.integration.worker_process import environment_of, page, until_ready, working
from tests.readme import sending, smallest_handler
from tests.waiting import BOUND, eventually


def test_the_smallest_handler_of_readme_runs_as_printed(kafka, tmp_path: Path) -> None:
    (tmp_path / "points.py").write_text(smallest_handler())
    (tmp_path / "send.py").write_text(
        "import asyncio\nfrom points import OrderPaid, app\n\n"
        f"async def main():\n{indent(sending(), '    ')}\nasyncio.run(main())\n"
    )
    environment = environment_of("readme", kafka.bootstrap, tmp_path / "var")
    del environment["PYTHONPATH"]
    with working("points", environment, cwd=tmp_path) as log:
        url = until_ready(environment, log)
        command = [sys.executable, "send.py"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=BOUND)
        rows = f"{url}/api/tables/points/rows?key=ada"
        eventually(lambda: '"earned":49' in page(rows).replace(" ", ""), f"a row; see {log}")
