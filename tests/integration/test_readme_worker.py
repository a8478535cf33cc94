"""The smallest handler of README, as it is printed, by a real worker on real Kafka."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from streams.runtime.compiling import HOT
from tests.integration.worker_process import BIN, environment_of, page, until_ready, working
from tests.readme import sending, smallest_handler
from tests.waiting import eventually
from tests.wheels import alone, run, sdist, wheel_of


def earn_points(kafka: Any, folder: Path, app_id: str, programs: Path) -> None:
    """Run README's programs by the interpreter and the commands of an environment."""
    (folder / "points.py").write_text(smallest_handler())
    (folder / "send.py").write_text(
        "import asyncio\nfrom points import OrderPaid, app\n\n"
        f"async def main():\n{indent(sending(), '    ')}\nasyncio.run(main())\n"
    )
    environment = environment_of(app_id, kafka.bootstrap, folder / "var")
    del environment["PYTHONPATH"]
    with working("points", environment, cwd=folder, programs=programs) as log:
        url = until_ready(environment, log)
        run(str(programs / "python"), "send.py", cwd=folder, environment=environment)
        rows = f"{url}/api/tables/points/rows?key=ada"
        eventually(lambda: '"earned":49' in page(rows).replace(" ", ""), f"a row; see {log}")


def test_the_smallest_handler_of_readme_runs_as_printed(kafka: Any, tmp_path: Path) -> None:
    earn_points(kafka, tmp_path, "readme", BIN)


@pytest.mark.verify("compiles, and fetches 60 packages; test_wheel.py has a pure wheel, without a worker")
@pytest.mark.timeout(3600)
def test_distributions_run_it_in_an_empty_environment(kafka: Any, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    python = alone(tmp_path / "environment", "web")
    source = sdist(tmp_path)
    pip = (str(python), "-m", "pip", "--disable-pip-version-check")
    where = f"import importlib as i; [print(i.import_module('streams.' + each).__file__) for each in {HOT}]"
    for kind, suffix, settings in (("pure", ".py", {}), ("compiled", ".so", {"STEADFAUST_COMPILED": "1"})):
        folder = tmp_path / kind
        folder.mkdir()
        wheel = wheel_of(source, folder, **settings)
        run(*pip, "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel), cwd=folder)
        assert "No broken requirements" in run(*pip, "check", cwd=folder)
        files = run(str(python), "-c", where, cwd=folder).split()
        assert [each for each in files if not each.endswith(suffix)] == []
        assert all(each.startswith(str(tmp_path / "environment")) for each in files)
        earn_points(kafka, folder, f"readme-{kind}-{sys.version_info.minor}", python.parent)
