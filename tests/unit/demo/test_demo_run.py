"""A demo that fails can be looked at."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from demo import run
from demo.drive import DemoPlan
from demo.ground import DemoFailed


class FailedDrive:
    def __init__(self, *_: object) -> None: ...

    async def run(self, _: Console) -> None:
        raise DemoFailed("no worker is left")


@pytest.mark.parametrize("keep", [True, False])
def test_what_failed_stays_up_where_it_is_to_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, keep: bool
) -> None:
    happened: list[str] = []
    for name, made in (
        ("stack_in", lambda *_: nullcontext()),
        ("Workers", lambda *_: nullcontext()),
        ("DemoEdge", lambda *_: nullcontext()),
        ("Drive", FailedDrive),
        ("_report", lambda *_, **__: SimpleNamespace(write=lambda _: happened.append("report"))),
        ("_stay", lambda *_: happened.append("stays up")),
    ):
        monkeypatch.setattr(run, name, made)
    plan = DemoPlan(10, tmp_path, keep=keep)
    with pytest.raises(DemoFailed, match="no worker is left"):
        run.run(plan, Console(quiet=True))
    assert happened == ["report", *(["stays up"] if keep else [])]
