"""Write docs/evidence.md, the tests of each promise: `python -m tests.evidence`, which `make format` runs.

The promises are in docs/guarantee.md. A test that holds one is marked with its id, and a note if the test's
name does not say what it covers: `@pytest.mark.promise("all-or-nothing", "disk kept and lost")`. They are
read from the source, because a whole collection takes longer than a document should.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GUARANTEE = ROOT / "docs" / "guarantee.md"
EVIDENCE = ROOT / "docs" / "evidence.md"

#: How a promise's link begins, by where its tests run.
LINKS = {"real": "Tests", "fake": "Tests, fake broker only", "none": "Tests, no broker"}

INTRODUCTION = """\
# The evidence

The tests that hold each promise of `docs/guarantee.md`. `make format` writes this page from the marks on
the tests. A file without a test's name stands for all tests in it.
"""


class Promise(NamedTuple):
    id: str
    section: str
    sentence: str
    link: str


class Mark(NamedTuple):
    promise: str
    path: str
    test: str | None
    note: str


class Paragraph(NamedTuple):
    """A sentence in bold, and what the page says before the next one."""

    section: str
    sentence: str
    links: list[tuple[str, str]]


def paragraphs(text: str) -> Iterator[Paragraph]:
    promised = text.split("\n## What it does not cover")[0]
    for section in re.split(r"^## ", promised, flags=re.MULTILINE)[1:]:
        heading = section.splitlines()[0]
        for each in re.split(r"^(?=\*\*)", section, flags=re.MULTILINE)[1:]:
            sentence = " ".join(each[2:].partition("**")[0].split())
            yield Paragraph(heading, sentence, re.findall(r"\[([^\]]+)\]\(evidence\.md#([\w-]+)\)", each))


def promises(text: str) -> list[Promise]:
    """Raise ValueError for a sentence in bold that does not lead to its tests once."""
    found = []
    for section, sentence, links in paragraphs(text):
        if len(links) != 1:
            raise ValueError(
                f'{GUARANTEE.name}: "{sentence}" needs one link to {EVIDENCE.name}, has {len(links)}'
            )
        ((link, identifier),) = links
        found.append(Promise(identifier, section, sentence, link))
    return found


def _is_promise(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise"


def marks_of(source: str, path: str) -> list[Mark]:
    """Raise ValueError for a mark that is neither on a test nor on its whole file (`pytestmark`)."""
    tree = ast.parse(source)
    found: list[Mark] = []

    def note(test: str | None, marks: Iterable[ast.AST]) -> None:
        for mark in marks:
            if isinstance(mark, ast.Call) and _is_promise(mark):
                identifier, *text = (ast.literal_eval(argument) for argument in mark.args)
                found.append(Mark(identifier, path, test, text[0] if text else ""))

    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            note(None, node.value.elts if isinstance(node.value, ast.List) else [node.value])
        for each in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                note(each.name, each.decorator_list)
    if len(found) != sum(map(_is_promise, ast.walk(tree))):
        raise ValueError(f"{path}: put each promise on a test or into pytestmark")
    return found


@cache
def marks() -> tuple[Mark, ...]:
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "__pycache__" not in path.parts]
    return tuple(mark for path in files for mark in marks_of(path.read_text(), str(path.relative_to(ROOT))))


#: What a world of a lane's test runs on: `world` is the fake broker and Kafka, `fake` the first alone.
REAL_FIXTURES = {"world", "kafka"}
REAL_FOLDERS = ("tests/browser/", "tests/contract/", "tests/integration/", "tests/scenarios/")
FAKE_FOLDERS = ("tests/lane/", "tests/simulation/")


@cache
def on_real_ones(path: Path) -> frozenset[str]:
    """The lane tests of a file that run on real Kafka, by their fixtures and those that these ask for."""
    nodes = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    arguments = {node.name: {each.arg for each in node.args.args + node.args.kwonlyargs} for node in nodes}

    def is_real(name: str, seen: frozenset[str] = frozenset()) -> bool:
        asked = arguments.get(name, set())
        return bool(asked & REAL_FIXTURES) or any(is_real(each, seen | {each}) for each in asked - seen)

    return frozenset(name for name in arguments if name.startswith("test_") and is_real(name))


def runs_on(tests: Iterable[Mark]) -> str:
    """`real`, `fake` or `none`: the most real thing that one of the tests runs on."""
    found = "none"
    for _, path, test, _ in tests:
        if path.startswith(REAL_FOLDERS):
            return "real"
        if path.startswith(FAKE_FOLDERS):
            found = "fake"
            real = on_real_ones(ROOT / path) if path.startswith("tests/lane/") else frozenset()
            if real if test is None else test in real:
                return "real"
    return found


def page(held: list[Promise], by: Iterable[Mark]) -> str:
    by = list(by)
    lines = [INTRODUCTION]
    section = ""
    for promise in held:
        if promise.section != section:
            section = promise.section
            lines.append(f"## {section}\n")
        lines += [f"### {promise.id}\n", *_wrapped(promise.sentence, ""), ""]
        for _, path, test, note in [mark for mark in by if mark.promise == promise.id]:
            name = f"`{path}::{test}`" if test else f"`{path}`"
            lines += _wrapped(f"- {name}: {note}" if note else f"- {name}", "  ")
        lines.append("")
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 150, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    EVIDENCE.write_text(page(promises(GUARANTEE.read_text()), marks()))
