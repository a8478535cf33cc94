import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from streams.local import local_stack, stop
from streams.local.errors import DiskFull, StackError
from streams.local.parts import StackSpec
from streams.local.supervisor import supervise

Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10 << 30, 10 << 30, 300 << 20))
    with pytest.raises(DiskFull, match=f"only 300 MiB are free where {tmp_path} is, Kafka needs 1024"):
        supervise(StackSpec(str(tmp_path)), say=pytest.fail)


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StackError, match=r"cannot write to .*supervisor\.log"), local_stack(file):
        pytest.fail("it started")


def test_stopping_what_is_down_does_nothing(tmp_path: Path) -> None:
    assert stop(tmp_path / "never-used") is False
