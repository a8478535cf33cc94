"""What `pip install` gives: the library alone, with its licence and its types."""

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

from tests.readme import smallest_handler
from tests.wheels import PROJECT, installed, run


def test_a_wheel_holds_the_library_alone_with_its_licence(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"streams", "steadfaust"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "streams/py.typed" in names
    assert any(name.startswith("streams/console/templates/") for name in names)


def test_the_smallest_handler_passes_mypy_with_the_wheel(wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "environment")
    (tmp_path / "points.py").write_text(smallest_handler())
    where = run(str(python), "-c", "import streams; print(streams.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "environment"))
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "points.py")
    run(*mypy, cwd=tmp_path)
    (tmp_path / "points.py").write_text(smallest_handler().replace("paid.cents", "paid.cent"))
    assert '"OrderPaid" has no attribute "cent"' in run(*mypy, cwd=tmp_path, status=1)


def test_the_application_runs_on_what_the_image_copies(wheel: Path, tmp_path: Path) -> None:
    python = installed(wheel, tmp_path / "environment")
    image = tmp_path / "app"
    image.mkdir()
    last = (PROJECT / "Dockerfile").read_text().rsplit("\nFROM ", 1)[1]
    for line in last.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            _, source, _ = line.split()
            place = shutil.copytree if (PROJECT / source).is_dir() else shutil.copy
            (image / source).parent.mkdir(parents=True, exist_ok=True)
            place(PROJECT / source, image / source)
    settings = {"STEADFAUST_APP_ID": "x", "STEADFAUST_BOOTSTRAP": "x", "STEADFAUST_GATEWAY_URL": "http://x"}
    code = "import agents.worker, agents.api.service, agents.gateway, agents; print(agents.__file__)"
    where = run(str(python), "-c", code, cwd=image, environment=settings)
    assert where.startswith(str(image))
