"""The pages build into a site (`make docs`), without a page outside its navigation or a broken link."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.hooks import linked
from tests.waiting import BOUND

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow("builds the site, some seconds for each test")


def build(config: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(into)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BOUND, check=False
    )


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    """A new page needs a line of `nav` in mkdocs.yml."""
    built = build(ROOT / "mkdocs.yml", tmp_path)
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (tmp_path / page).exists()} == set()
    assert 'href="operating.html#what-the-log-says"' in (tmp_path / "telemetry.html").read_text()


def test_broken_links_of_the_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# A page\n\n[a](none.md) [b](#nowhere) ![c](nothing.png)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\nhooks: []\nnav: [index.md]\n")
    built = build(config, tmp_path / "site")
    assert built.returncode == 1
    output = built.stdout + built.stderr
    assert all(each in output for each in ("none.md", "#nowhere", "nothing.png", "Aborted"))


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("see `docs/faust.md`", "demo.md", "see [`docs/faust.md`](faust.md)"),
        ("`docs/adr/0001-lanes.md`", "demo.md", "[`docs/adr/0001-lanes.md`](adr/0001-lanes.md)"),
        ("`docs/faust.md`", "adr/0001-lanes.md", "[`docs/faust.md`](../faust.md)"),
        ('`docs/a.md`, "To do"', "b.md", '[`docs/a.md`](a.md), ["To do"](a.md#to-do)'),
        ('`docs/a.md`,\n"To\ndo."', "b.md", '[`docs/a.md`](a.md),\n["To\ndo."](a.md#to-do)'),
        ("```\n`docs/a.md`\n```", "b.md", "```\n`docs/a.md`\n```"),
        ("`docs/adr/`, `streams/x.py`", "b.md", "`docs/adr/`, `streams/x.py`"),
    ],
)
def test_pages_that_are_named_as_code_become_links(text: str, at: str, expected: str) -> None:
    assert linked(text, at) == expected
