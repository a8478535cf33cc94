"""Words that new text does without, and a ceiling for each folder; `python -m tests.words` lowers them.

A struck word hides the subject, or makes a person of a program. Say who does what: "the lane reads its
assignment", not "what a lane is told".
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

STRUCK = (
    "told", "said", "stands", "stood", "whoever", "asked", "hears", "heard", "somebody", "nobody", "in vain",
    "gives way", "is to become", "becomes of", "became of", "put off", "stand behind", "stands behind",
)  # fmt: skip
#: How often they may occur, in code, comments and pages. These numbers only fall.
CEILINGS = {
    ".": 3,
    "agents": 1,
    "benchmarks": 1,
    "chaos": 0,
    "demo": 0,
    "docs": 1,
    "docs/adr": 3,
    "examples": 0,
    "ops": 0,
    "schemas": 0,
    "streams": 225,
    "tables": 4,
    "tests": 1535,
}

WORD = re.compile(r"\b(?:" + "|".join(each.replace(" ", r"\s+") for each in STRUCK) + r")\b", re.IGNORECASE)
#: The list itself, its tests, what was released, and what a program writes.
APART = {"tests/words.py", "tests/unit/test_words.py", "CHANGELOG.md", "docs/chaos-long-run.md"}
#: Folders that are made here.
MADE = ("var", "build", "dist")


def words_of(text: str) -> Counter[str]:
    """The struck words of a text, each with how often it occurs."""
    return Counter(" ".join(found.lower().split()) for found in WORD.findall(text))


def areas() -> dict[str, Counter[str]]:
    """The struck words of all code and pages, by the folder at the top."""
    tops = [top for top in ROOT.iterdir() if not top.name.startswith(".") and top.name not in MADE]
    paths = [each for top in tops for each in ([top] if top.is_file() else top.rglob("*"))]
    return counted(str(each.relative_to(ROOT)) for each in paths if each.suffix in (".py", ".md"))


def counted(paths: Iterable[str]) -> dict[str, Counter[str]]:
    """The struck words of files, by the folder at the top; "." has those beside the folders."""
    found: dict[str, Counter[str]] = {}
    for path in paths:
        if path in APART:
            continue
        found.setdefault(_area(path), Counter()).update(words_of((ROOT / path).read_text()))
    return found


def _area(path: str) -> str:
    """The folder at the top; the decisions, of which old ones stay, are by themselves."""
    if path.startswith("docs/adr/"):
        return "docs/adr"
    return path.split("/")[0] if "/" in path else "."


def lowered(source: str, counts: dict[str, int]) -> str:
    """The source of this module with lower ceilings; one that the text exceeds stays."""
    rows = "".join(
        f'    "{area}": {min(count, CEILINGS.get(area, 0))},\n' for area, count in sorted(counts.items())
    )
    return re.sub(r"(?<=^CEILINGS = \{\n).*?(?=^\})", rows, source, flags=re.DOTALL | re.MULTILINE)


def main() -> int:
    """Print the counts, and lower the ceilings to them. Returns 1 if the text exceeds one."""
    found = areas()
    for area, words in sorted(found.items()):
        most = ", ".join(f"{word} {count}" for word, count in words.most_common(6))
        print(f"{area:12} {words.total():5} of {CEILINGS.get(area, 0):5}  {most}")
    here = Path(__file__)
    here.write_text(lowered(here.read_text(), {area: words.total() for area, words in found.items()}))
    return int(any(words.total() > CEILINGS.get(area, 0) for area, words in found.items()))


if __name__ == "__main__":
    sys.exit(main())
