"""Where tests find the browser, and what they say when there is none."""

from pathlib import Path

import pytest

from tests.browser.browsers import COMMANDS, NoBrowser, find_browser


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_the_setting_comes_before_what_is_on_the_path(tmp_path: Path, name: str) -> None:
    found = program(tmp_path / COMMANDS[name][1])
    other = program(tmp_path / "another")
    path, setting = str(tmp_path), f"STEADFAUST_{name.upper()}"
    assert find_browser(name, {"PATH": path}) == str(found)
    assert find_browser(name, {"PATH": path, setting: str(other)}) == str(other)


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_browser_one_is_told_what_to_install(tmp_path: Path, name: str) -> None:
    with pytest.raises(NoBrowser, match=f"apt-get install {COMMANDS[name][0]}"):
        find_browser(name, {"PATH": str(tmp_path)})
    with pytest.raises(NoBrowser, match="no-such-browser"):
        find_browser(name, {"PATH": str(tmp_path), f"STEADFAUST_{name.upper()}": "no-such-browser"})
