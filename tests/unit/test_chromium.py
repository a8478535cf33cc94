"""Where tests find the browser, and what they say when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import NoBrowser, find_chromium


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_setting_comes_before_what_is_on_the_path(tmp_path: Path) -> None:
    found = program(tmp_path / "chromium-browser")
    other = program(tmp_path / "another")
    assert find_chromium({"PATH": str(tmp_path)}) == str(found)
    assert find_chromium({"PATH": str(tmp_path), "STEADFAUST_CHROMIUM": str(other)}) == str(other)


def test_without_a_browser_one_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(NoBrowser, match="apt-get install chromium"):
        find_chromium({"PATH": str(tmp_path)})
    with pytest.raises(NoBrowser, match="no-such-browser"):
        find_chromium({"PATH": str(tmp_path), "STEADFAUST_CHROMIUM": "no-such-browser"})
