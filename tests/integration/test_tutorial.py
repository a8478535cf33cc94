"""`docs/tutorial.md`: its files and commands in their order, with the wheel in an empty folder."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import expect

from streams.local.loopback import reserve
from tests.browser.browsers import launched
from tests.browser.visitor import visiting
from tests.waiting import BOUND, eventually

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
#: The path of the wheel on the page.
WHEEL = "/path/to/steadfaust-0.1.0-py3-none-any.whl"
#: Commands that only look: they are run again until their output has what the page says.
LOOKS = ("steadfaust rows show", "steadfaust saga show", "steadfaust dlq list")
#: What the page's reader has installed from an index.
TOOLS = {"faust": "-m faust", "pytest": "-m pytest -p no:cacheprovider", "mypy": "-m mypy"}


class Block(NamedTuple):
    """A block of code: its language, its title, its text."""

    language: str
    title: str
    text: str


class Reader:
    """A reader of the page, with a first terminal and others in which programs stay."""

    def __init__(self, at: Path, wheel: Path) -> None:
        self.at = at
        reserved = reserve()  # none of those that the system gives outgoing connections
        reserved.release()
        self.port = reserved.port
        self._wheel = wheel
        self._staying: dict[str, subprocess.Popen[bytes]] = {}
        # Without an index: what the project needs is here already.
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "PATH": f"{at / 'tools'}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # as pip reads it: without one
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "STEADFAUST_WEB_PORT": str(self.port),
            "PORT": "0",
        }
        (at / "tools").mkdir()
        self._tool("python3", f'exec {sys.executable} "$@"')
        self._tool("ruff", f'exec {Path(sys.executable).parent / "ruff"} "$@"')

    def _tool(self, name: str, text: str, folder: str = "tools") -> None:
        path = self.at / folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    @property
    def project(self) -> Path:
        made = self.at / "myapp"
        return made if made.exists() else self.at

    def write(self, block: Block) -> None:
        """Write a file of the page; of pyproject.toml the end is replaced."""
        path = self.project / block.title
        begin = ""
        if block.language == "toml":
            begin, found, _ = path.read_text().partition(block.text.splitlines()[0])
            assert found, f"{block.title} has no {block.text.splitlines()[0]}"
        path.write_text(begin + block.text)

    def type(self, block: Block) -> None:
        """Run the commands of a block, each with the output that the page says."""
        for chunk in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *expected = chunk.splitlines()
            if block.title:
                self._stay(block.title, command)
            elif command.startswith(LOOKS):
                self._look(command, expected)
            else:
                done = self._run(command)
                assert done.returncode == 0, done.stdout
                assert [line for line in expected if line not in done.stdout] == [], done.stdout

    def stop(self) -> None:
        """Press Ctrl-C in every other terminal, and stop the stack."""
        for title in list(self._staying):
            self._end(title)
        self._run("steadfaust down")

    def _look(self, command: str, expected: list[str]) -> None:
        shown = ""

        def shows() -> bool:
            nonlocal shown
            shown = self._run(command).stdout
            return all(line in shown for line in expected)

        try:
            eventually(shows, f"{command} shows {expected}", every=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {shown}") from None

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        command = command.replace(WHEEL, str(self._wheel))
        done = subprocess.run(
            ["bash", "-c", self._here(command)],
            cwd=self.project, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=BOUND, check=False,
        )  # fmt: skip
        if "-m venv" in command:
            self._have_packages()
        return done

    def _stay(self, title: str, command: str) -> None:
        if title in self._staying:
            self._end(title)
        with (self.at / f"{title}.log").open("ab") as log:
            self._staying[title] = subprocess.Popen(
                ["bash", "-c", self._here(re.sub(r"^((?:\w+=\S+ )*)", r"exec env \1", command))],
                cwd=self.project, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    def _end(self, title: str) -> None:
        process = self._staying.pop(title)
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 0, (self.at / f"{title}.log").read_text()

    def _here(self, command: str) -> str:
        activate = self.at / ".venv" / "bin" / "activate"
        return f"source {shlex.quote(str(activate))}\n{command}" if activate.exists() else command

    def _have_packages(self) -> None:
        """What an index would have: the packages of this environment, without the checkout."""
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(self.at / ".venv")}))
        for older in (*packages.glob("setuptools*"), *packages.glob("_distutils_hack")):
            shutil.rmtree(older)  # in place of a newer one
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        for name, program in TOOLS.items():
            self._tool(name, f'exec "$VIRTUAL_ENV/bin/python" {program} "$@"', ".venv/bin")


async def mend_the_letter(port: int) -> None:
    async with launched() as browser, visiting(browser, f"http://127.0.0.1:{port}", token="") as visitor:
        page = visitor.page
        await page.goto("/dead-letters/letters")
        await page.locator("#letters tbody tr").get_by_role("link").first.click()
        await page.get_by_role("link", name="Edit the message").click()
        await page.locator('input[name="field:customer"]').fill("bob")
        await page.get_by_role("button", name="Show what changes", exact=True).click()
        await page.get_by_label("Your name").fill("ann")
        await page.get_by_label("Why").fill("the name was wrong")
        await page.get_by_role("button", name="Replay with this change").click()
        await expect(page.locator("body")).to_contain_text("no longer a dead letter")


@pytest.fixture
def reader(wheel: Path, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path, wheel)
    try:
        yield reader
    finally:
        reader.stop()


@pytest.mark.browser
@pytest.mark.verify("two minutes of processes; test_new.py makes a project and runs it in `make test`")
@pytest.mark.timeout(600)
def test_the_tutorial_works_as_printed(reader: Reader) -> None:
    text = PAGE.read_text()
    blocks = [
        (found.start(), Block(*(part or "" for part in found.groups()))) for found in FENCE.finditer(text)
    ]
    browsing = text.index("Correct it in the browser")
    for name in ("Edit the message", "Show what changes", "Replay with this change", "/dead-letters/letters"):
        assert name in text[browsing:]
    mended = False
    for start, block in blocks:
        if start > browsing and not mended:
            asyncio.run(mend_the_letter(reader.port))
            mended = True
        reader.type(block) if block.language == "console" else reader.write(block)
    assert mended
