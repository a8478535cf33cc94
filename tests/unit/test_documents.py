"""What the documents name as proof is there: every test file, and every test by its whole name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "docs" / "guarantee.md",
    *sorted((ROOT / "docs" / "adr").glob("*.md")),
]
GUARANTEE = ROOT / "docs" / "guarantee.md"

CODE = re.compile(r"`([^`\n]+)`")
#: A path, a test in it, or both: without a path it is one of the file named before.
NAMED = re.compile(r"(tests/[^\s:`]*)?(?:::(\S+))?")


def named(text: str) -> Iterator[tuple[str, str | None]]:
    """The files, each with a test or None, that a document's `code` names."""
    path = ""
    for code in CODE.findall(text):
        match = NAMED.fullmatch(code)
        if match is None or not (match[1] or match[2]):
            continue
        path = match[1] or path
        yield path, match[2]


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Every function of the file that begins as a test, at the top or in a class there."""
    tree = ast.parse(path.read_text())
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    functions = (
        node for body in bodies for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def missing(text: str) -> list[str]:
    """What a document names and is not there."""
    wrong = []
    for path, test in named(text):
        there = ROOT / path
        if not there.exists() or (
            test is not None and (not there.is_file() or test not in functions_of(there))
        ):
            wrong.append(path if test is None else f"{path}::{test}")
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_is_there(document: Path) -> None:
    assert missing(document.read_text()) == []


def test_the_guarantee_names_tests_for_each_of_its_sentences() -> None:
    """A sentence in bold is a promise: before the next one, or the next heading, a test is named."""
    text = GUARANTEE.read_text().split("\n## What it does not cover")[0]
    promises = re.split(r"^(?=\*\*|## )", text, flags=re.MULTILINE)
    without = [p.splitlines()[0] for p in promises if p.startswith("**") and not list(named(p))]
    assert without == []


HERE = "tests/unit/test_documents.py"


@pytest.mark.parametrize(
    "text",
    [
        f"`{HERE}::test_every_test_that_a_document_names`",
        f"`{HERE}::test_every_test_that_a_document_names_is_therex`",
        f"`{HERE}::test_*`",
        f"`{HERE}::missing`",
        f"`{HERE}`, `::test_of_nothing`",
        "`tests/unit/test_document.py`",
        "`tests/unit/test_*.py`",
        "`tests/unit::test_every_test_that_a_document_names_is_there`",
    ],
)
def test_a_name_that_is_misspelt_or_short_is_found(text: str) -> None:
    assert missing(f"**So it is.**\n- {text}, as said\n") != []


def test_names_that_are_right_are_not() -> None:
    assert missing(f"- `{HERE}::{test_names_that_are_right_are_not.__name__}`, `tests/unit`, `{HERE}`") == []
