"""The documents are true where a program can check it: what they name is there, and they are short."""

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from agents.settings import OrderSettings
from tests import evidence

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "tests" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Every page of the project, those that programs write among them.
PAGES = [
    path
    for top in sorted(ROOT.iterdir())
    if not top.name.startswith(".") and top.name not in ("var", "build", "dist")
    for path in ([top] if top.is_file() else sorted(top.rglob("*.md")))
    if path.suffix == ".md"
]
GLOSSARY = ROOT / "docs" / "glossary.md"
ROOMS = ROOT / "docs" / "adr" / "0019-rooms.md"

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
    functions = (n for body in bodies for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


#: What a page tells its reader to make.
TO_BE_MADE = {
    "add-a-service.md": re.compile(r"loyalty|points|^\d\.avsc"),
    "README.md": re.compile(r"^points\.py$"),
    "simulation.md": re.compile(r"points\.py$"),
    "tutorial.md": re.compile(r"^myapp/|^myapp$|^tests/test_(checkout|orders)\.py$"),
}


def missing(text: str, page: str = "") -> list[str]:
    to_be_made = TO_BE_MADE.get(page)
    wrong = []
    for path, test in named(text):
        if to_be_made and to_be_made.search(path):
            continue
        there = ROOT / path
        if not there.exists() or (
            test is not None and (not there.is_file() or test not in functions_of(there))
        ):
            wrong.append(path if test is None else f"{path}::{test}")
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_is_there(document: Path) -> None:
    assert missing(document.read_text(), document.name) == []


# -- each promise has its tests ---------------------------------------------------------------------------


def test_each_promise_has_a_test_and_each_mark_a_promise() -> None:
    """Mark a test with `@pytest.mark.promise("id")`, the id that the promise's link ends with."""
    ids = [promise.id for promise in evidence.promises(evidence.GUARANTEE.read_text())]
    assert [each for each in set(ids) if ids.count(each) > 1] == []
    assert {mark.promise for mark in evidence.marks()} == set(ids)


def test_the_page_of_evidence_is_up_to_date() -> None:
    held = evidence.promises(evidence.GUARANTEE.read_text())
    assert evidence.EVIDENCE.read_text() == evidence.page(held, evidence.marks()), "run make format"


def test_the_guarantee_says_what_rests_on_the_fake_alone() -> None:
    wrong = {}
    for promise in evidence.promises(evidence.GUARANTEE.read_text()):
        tests = [mark for mark in evidence.marks() if mark.promise == promise.id]
        link = evidence.LINKS[evidence.runs_on(tests)]
        if promise.link != link:
            wrong[promise.id] = f"says {promise.link}, not {link}"
    assert wrong == {}


@pytest.mark.parametrize(
    ("path", "test", "ground"),
    [
        ("tests/lane/test_lane_desk_deploys.py", None, "fake"),
        ("tests/lane/test_lane_delivery.py", None, "real"),
        ("tests/lane/test_lane_delivery.py", "test_two_handlers_of_one_event_each_run_once", "real"),
        ("tests/scenarios/test_faults.py", None, "real"),
        ("tests/simulation/test_seeds.py", None, "fake"),
        ("tests/unit/test_documents.py", None, "none"),
    ],
)
def test_where_a_test_runs_is_known_from_its_file(path: str, test: str | None, ground: str) -> None:
    assert evidence.runs_on([evidence.Mark("x", path, test, "")]) == ground
    assert (
        evidence.runs_on([evidence.Mark("x", HERE, None, ""), evidence.Mark("x", path, test, "")]) == ground
    )


@pytest.mark.parametrize("links", ["", "[Tests](evidence.md#a) [Tests](evidence.md#b)"])
def test_a_promise_without_one_link_is_found(links: str) -> None:
    with pytest.raises(ValueError, match="needs one link"):
        evidence.promises(f"## One\n**So.** It is.\n{links}\n")


def test_marks_are_read_from_tests_classes_and_files() -> None:
    mark = "pytest.mark.promise"
    source = (
        f"pytestmark = [pytest.mark.slow('x'), {mark}('a')]\n"
        f"@{mark}('a', 'six ' 'points')\n@{mark}('b')\ndef test_one(): ...\n"
        f"class TestIt:\n    @{mark}('c')\n    async def test_two(self): ...\n"
    )
    assert evidence.marks_of(source, "x.py") == [
        ("a", "x.py", None, ""),
        ("a", "x.py", "test_one", "six points"),
        ("b", "x.py", "test_one", ""),
        ("c", "x.py", "test_two", ""),
    ]


def test_a_mark_where_nobody_looks_is_found() -> None:
    with pytest.raises(ValueError, match="pytestmark"):
        evidence.marks_of("CASES = [pytest.param(1, marks=pytest.mark.promise('a'))]\n", "x.py")


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


# -- short enough to be read ------------------------------------------------------------------------------

README_LINES = 160
#: Two screens: what stands above the end of the first program.
FIRST_HANDLER_LINES = 60
PARAGRAPH = 600
#: A program writes this one.
REPORT = ROOT / "docs" / "chaos-long-run.md"

ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def paragraphs(text: str) -> Iterator[str]:
    """What one reads in one go: a paragraph, an item of a list, a row of a table. Not code."""
    lines: list[str] = []
    code = False
    for line in [*text.splitlines(), ""]:
        bare = line.strip()
        fence = bare.startswith("```")
        alone = fence or not bare or bare.startswith(("#", "|"))
        if (alone or ITEM.match(bare)) and lines:
            yield " ".join(lines)
            lines = []
        if fence:
            code = not code
        elif bare.startswith("|") and not code:
            yield bare
        elif bare and not code and not alone:
            lines.append(bare)


def long_ones(text: str) -> list[str]:
    return [f"{len(each)} characters: {each[:60]}" for each in paragraphs(text) if len(each) > PARAGRAPH]


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if d != REPORT], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_paragraph_is_longer_than_one_reads(document: Path) -> None:
    assert long_ones(document.read_text()) == []


def test_a_newcomer_reads_the_readme_in_five_minutes() -> None:
    assert len(README.read_text().splitlines()) <= README_LINES


def test_the_first_handler_is_on_the_first_two_screens() -> None:
    above = README.read_text().partition("```python\n")
    lines = (above[0] + above[2].partition("```\n")[0]).splitlines()
    assert above[1]
    assert len(lines) <= FIRST_HANDLER_LINES


#: A line of a page or a row of a table, in characters. Code may need longer ones.
LINE = 160


def long_lines(text: str) -> list[str]:
    """Lines beyond the limit, each with its number."""
    prose = re.sub(r"^```.*?^```", lambda c: "\n" * c[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    lines = enumerate(prose.splitlines(), 1)
    return [f"line {number}: {line[:60]}" for number, line in lines if len(line) > LINE]


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_is_wider_than_a_screen(document: Path) -> None:
    assert long_lines(document.read_text()) == []


@pytest.mark.parametrize("wide", ["{}", "- {}", "| {} |", "```\n{}\n```\n{}"])
def test_a_line_that_is_too_wide_is_found(wide: str) -> None:
    assert len(long_lines(wide.replace("{}", "x" * (LINE + 1)))) == 1


def test_wide_code_is_not_a_wide_line() -> None:
    assert long_lines(f"```\n{'x' * (LINE + 1)}\n```\n{'x' * LINE}\n") == []


@pytest.mark.parametrize("long", ["{}", "- {}", "one.\n{}", "2. {}", "| {} |", "```\ncode\n```\n{}"])
def test_a_paragraph_that_is_too_long_is_found(long: str) -> None:
    assert len(long_ones(long.format("x" * (PARAGRAPH + 1)))) == 1


@pytest.mark.parametrize("apart", ["{0}\n\n{0}", "- {0}\n- {0}", "# {0}\n{0}", "```\n{0}{0}\n```"])
def test_several_short_ones_and_code_are_not(apart: str) -> None:
    assert long_ones(apart.format("x" * (PARAGRAPH - 10))) == []


# -- nothing named that is not there ----------------------------------------------------------------------

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
ADR = re.compile(r"\bADRs? (\d+)|docs/adr/(\d{4})")
HEADING_OF = re.compile(r"""docs/(\w[\w-]*\.md)`?, "([^"\n{]+)\"""")
#: A path of ours: a folder at the top and what is in it, or a module.
PATH = re.compile(
    r"(?:agents|benchmarks|chaos|demo|docs|examples|ops|schemas|streams|tables|tests)/[\w./-]*|[\w./-]+\.(?:py|md|toml)"
)


@cache
def files() -> frozenset[str]:
    skipped = (".", "var", "build")
    tops = [top for top in ROOT.iterdir() if not top.name.startswith(skipped)]
    return frozenset(
        str(path.relative_to(ROOT))
        for top in tops
        for path in [top, *top.rglob("*")]
        if "__pycache__" not in path.parts
    )


def paths_of(text: str) -> Iterator[str]:
    """The paths that a document names as code, within code blocks too."""
    for code in CODE.findall(text):
        if PATH.fullmatch(code):
            yield code
    for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        yield from re.findall(r"(?<![\w./-])[a-z_]+/[\w/]*\w+\.(?:py|md)\b", block)


def absent(text: str, page: str = "") -> list[str]:
    """What it names and is not there: a path counts as there when one of ours ends with it."""
    to_be_made = TO_BE_MADE.get(page)
    ours = files()
    return [
        path
        for path in paths_of(text)
        if not (to_be_made and to_be_made.search(path))
        and not any(each == path.rstrip("/") or each.endswith("/" + path.rstrip("/")) for each in ours)
    ]


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def headings(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def broken_links(text: str, at: Path) -> list[str]:
    """Links into the project that lead nowhere, or to a heading that is not there."""
    broken = []
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        there = (at.parent / name).resolve() if name else at
        if not there.exists() or (anchor and anchor not in map(slug, headings(there))):
            broken.append(link)
    return broken


def unknown_pages(text: str) -> list[str]:
    """Decisions and headings that are named and not there."""
    numbers = {path.name[:4] for path in (ROOT / "docs" / "adr").glob("*.md")}
    adrs = [
        f"ADR {plain or full}" for plain, full in ADR.findall(text) if (plain or full).zfill(4) not in numbers
    ]
    return adrs + [
        f"{page}, {heading}"
        for page, heading in HEADING_OF.findall(text)
        if not (ROOT / "docs" / page).exists() or heading.rstrip(".,") not in headings(ROOT / "docs" / page)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_that_a_document_names_is_there(document: Path) -> None:
    assert absent(document.read_text(), document.name) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_broken(document: Path) -> None:
    assert broken_links(document.read_text(), document) == []


def sources() -> Sequence[Path]:
    """Every file that names documents: they themselves, and the code."""
    roots = ("streams", "agents", "tables", "examples", "chaos", "demo", "benchmarks")
    return [*DOCUMENTS, *(path for root in roots for path in sorted((ROOT / root).rglob("*.py")))]


def test_every_decision_and_every_heading_that_is_named_is_there() -> None:
    wrong = {str(path.relative_to(ROOT)): unknown_pages(path.read_text()) for path in sources()}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "`streams/nowhere.py`",
        "`nowhere.py`",
        "`docs/adr/`, `docs/none/`",
        "```\nlane/no.py\n```",
        "```python\nx\n```\n```\nlane/no.py\n```",
    ],
)
def test_a_path_that_is_not_there_is_found(text: str) -> None:
    assert len(absent(text)) == 1


@pytest.mark.parametrize("link", ["[a](none.md)", "[a](#none)", "[a](README.md#none)"])
def test_a_broken_link_is_found(link: str) -> None:
    assert len(broken_links(link, README)) == 1


@pytest.mark.parametrize(
    "text", ["ADR 999", "docs/adr/0999-x.md", 'docs/operating.md, "None"', 'docs/none.md, "None"']
)
def test_a_decision_or_heading_that_is_missing_is_found(text: str) -> None:
    assert len(unknown_pages(text)) == 1


# -- nothing there that is not named ----------------------------------------------------------------------


def test_every_setting_is_documented_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs" / "settings.md").read_text(), flags=re.MULTILINE
    )
    said = {name: default.strip(" `") for name, default in rows if not name.startswith("STEADFAUST_")}
    fields = {name.upper(): field.default for name, field in OrderSettings.model_fields.items()}
    assert said.keys() == fields.keys()
    for name, default in fields.items():
        if str(default):  # what an empty one stands for is said in words
            number = isinstance(default, int | float) and not isinstance(default, bool)
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            assert said[name] == (f"{default:.15g}" if number else shown), name


def test_every_room_of_the_library_is_on_the_page() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "streams").glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in page} == set()


def test_every_module_of_the_way_of_a_message_is_explained() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    engine = ROOT / "streams" / "engine"
    modules = [path for room in ("way", "waiting", "life") for path in sorted((engine / room).glob("*.py"))]
    names = [str(path.relative_to(engine.parent)) for path in modules if path.stem != "__init__"]
    assert [name for name in names if f"`{name}`" not in page] == []


BESIDE = 44


def test_the_picture_of_the_rooms_is_the_contract() -> None:
    """Its rooms, line by line, are the layers that import-linter holds; a word on them stands beside."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["streams"])
    picture = ROOMS.read_text().split("```")[1].strip("\n").splitlines()
    drawn = [line[:BESIDE].split() for line in picture]
    assert drawn == [layer.replace(":", " ").split() for layer in layers]


def test_every_page_can_be_reached_from_the_readme() -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert [path.name for path in pages if f"docs/{path.name}" not in README.read_text()] == []


def terms_of_the_glossary() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \|[^|]+\|$", GLOSSARY.read_text(), flags=re.MULTILINE)
    return [term for row in rows if row != "Term" for term in row.split(", ")]


def test_the_glossary_has_each_term_once() -> None:
    terms = terms_of_the_glossary()
    assert len(terms) > 50
    assert [term for term in set(terms) if terms.count(term) > 1] == []
    rows = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("|")]
    assert [row for row in rows if row.count("|") != 3] == []  # a term and its meaning, on one line


# -- tests say what they claim ----------------------------------------------------------------------------

NAME_WORDS = 10


def test_names_of_tests_have_ten_words_at_most() -> None:
    names = {name: path for path in (ROOT / "tests").rglob("test_*.py") for name in functions_of(path)}
    assert {name for name in names if len(name.removeprefix("test_").split("_")) > NAME_WORDS} == set()
