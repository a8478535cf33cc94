"""The system's Chromium and Firefox, driven by Playwright; nothing is fetched."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

#: Names on PATH; the first is Debian's package, too.
COMMANDS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "firefox": ("firefox-esr", "firefox"),
}


class NoBrowser(Exception):
    """This browser is not on the machine."""


def find_browser(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The path of the browser: what the setting names, or the first command that is there.

    Raises NoBrowser, which says what to install.
    """
    setting, commands = f"STEADFAUST_{name.upper()}", COMMANDS[name]
    path = environment.get("PATH", "")
    if named := environment.get(setting):
        if found := shutil.which(named, path=path):
            return found
        raise NoBrowser(f"{setting} is {named!r}, which is no program")
    for command in commands:
        if found := shutil.which(command, path=path):
            return found
    raise NoBrowser(
        f"tests in the browser need {name.capitalize()}, and none of {', '.join(commands)} is on PATH:"
        f" install it (on Debian: apt-get install {commands[0]}), or name it in {setting}"
    )


@asynccontextmanager
async def launched(name: str = "chromium") -> AsyncIterator[Browser]:
    """A browser, until it is left."""
    # Chromium's sandbox refuses to run as root; in containers the shared memory is too small for it.
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        with tempfile.TemporaryDirectory() as folder:
            if name == "firefox":
                relay = Path(folder) / "firefox"
                command = [sys.executable, str(Path(__file__).with_name("bidi.py")), find_browser(name)]
                relay.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
                relay.chmod(0o755)
                browser = await playwright.firefox.launch(channel="moz-firefox", executable_path=relay)
            else:
                browser = await playwright.chromium.launch(
                    executable_path=find_browser(name), args=[*as_root, "--disable-dev-shm-usage"]
                )
            try:
                yield browser
            finally:
                await browser.close()
