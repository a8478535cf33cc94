"""Where workers reach each other, and what they are called."""

import socket
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from structlog.testing import capture_logs

from streams.brokers import Brokers, Peers
from streams.errors import SettingsError
from streams.host import slots
from streams.host.membership import static_member_id
from streams.host.slots import reached_at, take_port, take_slot, url_of
from streams.model.layout import Layout
from streams.settings import Settings

TOKEN = "a-token-of-this-application"
NEAR = Brokers("127.0.0.1:9092")


def test_loopback_alone_is_the_default() -> None:
    assert reached_at(Settings().peers(), NEAR) == "127.0.0.1"


def test_an_address_is_found_by_the_way_to_the_brokers() -> None:
    assert reached_at(Peers("auto", TOKEN), NEAR) == "127.0.0.1"
    assert reached_at(Peers("auto", TOKEN), Brokers("nowhere.invalid:1,127.0.0.1:9092")) == "127.0.0.1"


def test_an_address_is_this_machine_s() -> None:
    assert reached_at(Peers("127.0.0.3", TOKEN), NEAR) == "127.0.0.3"
    assert reached_at(Peers("localhost", TOKEN), NEAR) == "localhost"
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1, where this machine cannot be reached"):
        reached_at(Peers("192.0.2.1", TOKEN), NEAR)
    with pytest.raises(SettingsError, match="no way leads to a broker"):
        reached_at(Peers("auto", TOKEN), Brokers("nowhere.invalid:1"), patience=0)


def test_an_address_is_waited_for_until_brokers_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that is stopped has no name: the workers beside it may start before the brokers do."""
    known, asked = socket.getaddrinfo, []

    def unknown_at_first(host: str, *more: Any, **options: Any) -> Any:
        asked.append(host)
        if len(asked) <= 4:  # both, twice
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known("127.0.0.1", *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", unknown_at_first)
    with capture_logs() as lines:
        assert reached_at(Peers("auto", TOKEN), Brokers("kafka-1:9092,kafka-2:9092")) == "127.0.0.1"
    assert asked == ["kafka-1", "kafka-2"] * 2 + ["kafka-1"]
    (line,) = lines
    assert line["event"] == "waits_for_a_way_to_brokers"
    assert "kafka-2:9092" in line["why"]


def test_an_address_without_a_port_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="STEADFAUST_BOOTSTRAP has 'kafka-1': expected host:port"):
        reached_at(Peers("auto", TOKEN), Brokers("kafka-1"))


def test_an_address_of_the_newer_kind_stands_in_brackets() -> None:
    assert url_of("fd00::7", 6066) == "http://[fd00::7]:6066"
    assert url_of("10.0.0.7", 6066) == "http://10.0.0.7:6066"


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WEB_HOST": "auto"}, "set STEADFAUST_WEB_TOKEN"),
        ({"WEB_HOST": "auto", "WEB_TOKEN": "short"}, "16 characters"),
        ({"WEB_HOST": "auto", "WEB_TOKEN": TOKEN, "WEB_TOKEN_FILE": "secret"}, "are both set"),
        ({"WEB_HOST": "auto", "WEB_TOKEN_FILE": "/nowhere/secret"}, "cannot be read"),
    ],
)
def test_no_worker_opens_to_the_network_without_a_token(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"STEADFAUST_{name}", value)
    with pytest.raises(SystemExit) as refused:
        Settings.read_or_exit()
    assert told in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_no_text_of_the_settings_has_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADFAUST_WEB_TOKEN", TOKEN)
    settings = Settings()
    for text in (repr(settings), settings.model_dump_json(), repr(settings.peers())):
        assert TOKEN not in text


def test_two_machines_of_one_name_are_different_members(tmp_path: Path) -> None:
    """Both are made of the same image, and both take slot 0."""
    one, other = take_slot(tmp_path / "one"), take_slot(tmp_path / "other")
    ids = [static_member_id(Layout("app", 8, 4), each.number, f"vm-{each.place}") for each in (one, other)]
    assert one.number == other.number == 0
    assert ids[0] != ids[1]
    one.release()
    again = take_slot(tmp_path / "one")  # a restart is the same member
    assert static_member_id(Layout("app", 8, 4), again.number, f"vm-{again.place}") == ids[0]
    other.release()
    again.release()


@pytest.mark.promise("same-identity")
def test_a_copied_directory_is_another_member(tmp_path: Path) -> None:
    one = take_slot(tmp_path / "one")
    copytree(tmp_path / "one", tmp_path / "copy")
    copy = take_slot(tmp_path / "copy")
    assert copy.number == one.number
    assert copy.place != one.place
    copy.release()
    again = take_slot(tmp_path / "copy")  # from now on it is the same
    assert again.place == copy.place
    again.release()
    one.release()


@pytest.mark.promise("same-identity")
@pytest.mark.parametrize("mask", [slots._STATX_BTIME, 0])
def test_a_new_inode_alone_makes_no_other_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int
) -> None:
    """As overlay file systems give one at each start of a container; not all tell when a file was made."""
    monkeypatch.setattr(slots, "_STATX_BTIME", mask)
    one = take_slot(tmp_path)
    one.release()
    for _ in range(2):
        (tmp_path / "place.inode").write_text("4711")
        again = take_slot(tmp_path)
        assert again.place == one.place
        again.release()
        assert (tmp_path / "place.inode").read_text() == str((tmp_path / "place").stat().st_ino)
    copytree(tmp_path, tmp_path / "copy")
    copy = take_slot(tmp_path / "copy")
    assert copy.place != one.place
    copy.release()


@pytest.mark.parametrize("written", ["0123456789abcdef", "0123456789abcdef 4711"])
def test_a_directory_of_an_older_version_keeps_its_identity(tmp_path: Path, written: str) -> None:
    (tmp_path / "place").write_text(written)
    for _ in range(2):
        slot = take_slot(tmp_path)
        assert slot.place == "0123456789abcdef"
        assert (tmp_path / "place").read_text() == slot.place, "an older version reads all of it"
        slot.release()
    copytree(tmp_path, tmp_path / "copy")
    copy = take_slot(tmp_path / "copy")
    assert copy.place != slot.place
    copy.release()


@pytest.mark.parametrize("left", ["place", "place.inode"])
def test_an_identity_is_whole_after_any_crash(tmp_path: Path, left: str) -> None:
    """Either file may be missing: it was made in two steps, or an older version has renewed it."""
    slot = take_slot(tmp_path)
    slot.release()
    (tmp_path / {"place": "place.inode", "place.inode": "place"}[left]).unlink()
    again = take_slot(tmp_path)
    assert (again.place == slot.place) == (left == "place")
    again.release()
    third = take_slot(tmp_path)
    assert third.place == again.place == (tmp_path / "place").read_text()
    third.release()


def test_a_renewed_directory_has_no_identity_left(tmp_path: Path) -> None:
    slot = take_slot(tmp_path)
    slot.renew()
    assert not list(tmp_path.glob("place*"))
    slot.release()
    again = take_slot(tmp_path)
    assert again.place != slot.place
    again.release()


def test_a_directory_that_is_moved_keeps_its_identity(tmp_path: Path) -> None:
    one = take_slot(tmp_path / "one")
    one.release()
    (tmp_path / "one").rename(tmp_path / "moved")
    moved = take_slot(tmp_path / "moved")
    assert moved.place == one.place
    moved.release()


def test_a_port_is_kept_from_others_until_the_server_listens() -> None:
    (kept,) = take_port(0)
    port = kept.getsockname()[1]
    (other,) = take_port(port)
    assert other.getsockname()[1] != port
    other.close()
    kept.listen()
    kept.close()
    (again,) = take_port(port)
    assert again.getsockname()[1] == port
    again.close()
