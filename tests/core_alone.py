"""A copy of the library with the rooms of the core and nothing else."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What holds the guarantee, what it stands on, and the start-up. All other rooms can be left out.
CORE = frozenset(("model", "engine", "kafka", "host", "worker", "system", "logs", "tracing"))


def core_alone(into: Path, *more: str) -> Path:
    """Copy the core to `into`, the folder to put first on `PYTHONPATH`. `more` are rooms that a test needs
    beside it, without their `__init__`, which may name rooms that are left out.
    """

    def left_out(folder: str, names: list[str]) -> list[str]:
        rooms = {path.parent.name for path in Path(folder).glob("*/__init__.py")}
        unwanted = rooms - CORE - set(more) if Path(folder) == ROOT / "streams" else set()
        return [name for name in names if name == "__pycache__" or name in unwanted]

    shutil.copytree(ROOT / "streams", into / "streams", ignore=left_out)
    for room in more:
        (into / "streams" / room / "__init__.py").write_text("")
    return into
