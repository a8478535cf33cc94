"""The programs that README prints."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def smallest_handler() -> str:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert programs, "README shows no program"
    return str(programs[0])


def sending() -> str:
    """What README shows next: how a message is sent to it, by a coroutine."""
    return str(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1])
