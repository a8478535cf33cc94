"""The system's Chromium, driven by Playwright; nothing is fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from playwright.async_api import Browser, async_playwright

SETTING = "STEADFAUST_CHROMIUM"
COMMANDS = ("chromium", "chromium-browser", "google-chrome")


class NoBrowser(Exception):
    """There is no Chromium on this machine."""


def find_chromium(environment: Mapping[str, str] = os.environ) -> str:
    """The path of the browser: what the setting names, or the first command that is there.

    Raises NoBrowser, which says what to install.
    """
    path = environment.get("PATH", "")
    if named := environment.get(SETTING):
        if found := shutil.which(named, path=path):
            return found
        raise NoBrowser(f"{SETTING} is {named!r}, which is no program")
    for command in COMMANDS:
        if found := shutil.which(command, path=path):
            return found
    raise NoBrowser(
        f"tests in the browser need Chromium, and none of {', '.join(COMMANDS)} is on PATH: install it"
        f" (on Debian: apt-get install chromium; `.ci/run` does so), or name it in {SETTING}"
    )


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser, until it is left."""
    # Chromium's sandbox refuses to run as root; in containers the shared memory is too small for it.
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=[*as_root, "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            await browser.close()
