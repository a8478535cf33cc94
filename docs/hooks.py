"""Hooks of mkdocs: README as the first page, decisions in the navigation, names of pages as links.

The pages name each other as code (`docs/operating.md`, "A handler fails"), which reads well in a terminal.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
#: A page as code, and perhaps one of its headings; or a block of code, which stays as it is.
NAMED = re.compile(r"^ *```.*?^ *```|`docs/([\w/-]+\.md)`(?:(,\s+)\"([^\"]+)\")?", re.DOTALL | re.MULTILINE)

_slug = slugify(case="lower")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the decisions to the last part of the navigation."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    last: dict[str, list[Any]] = (config.nav or [])[-1]
    last["Understand"].append({"Decisions": [f"adr/{name}" for name in decisions]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make README the first page."""
    readme = (ROOT / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the pages that are named as code."""
    del config, files
    return linked(markdown, page.file.src_uri)


def linked(markdown: str, at: str) -> str:
    """The text of the page `at`, a path in docs, with links to the pages and headings that it names."""

    def link(found: re.Match[str]) -> str:
        name, comma, heading = found.groups()
        if name is None:
            return found[0]
        path = relpath(name, dirname(at) or ".")
        if heading is None:
            return f"[`docs/{name}`]({path})"
        anchor = _slug(" ".join(heading.rstrip(".,").split()), "-")
        return f'[`docs/{name}`]({path}){comma}["{heading}"]({path}#{anchor})'

    return NAMED.sub(link, markdown)
