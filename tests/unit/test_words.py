"""Struck words become fewer: `python -m tests.words` counts them, and lowers the ceilings."""

import re
from pathlib import Path

import pytest

from tests import words
from tests.words import CEILINGS, STRUCK, areas, counted, lowered, words_of


def test_new_text_does_without_struck_words() -> None:
    """tests/words.py has the words, and what to write instead. A new folder has none of them."""
    found = {area: count for area, count in areas().items() if count.total() > CEILINGS.get(area, 0)}
    assert {
        area: f"{count.total()} above {CEILINGS.get(area, 0)}: {count}" for area, count in found.items()
    } == {}


@pytest.mark.parametrize("word", STRUCK)
def test_each_struck_word_is_found(word: str) -> None:
    broken = word.replace(" ", "\n")
    assert words_of(f"what {word}, and {broken.title()}.").total() == 2


@pytest.mark.parametrize(
    "text", ["a cold standby", "aside_told_by", "the lane reads its assignment", "unasked"]
)
def test_other_words_are_not(text: str) -> None:
    assert words_of(text).total() == 0


def test_files_are_counted_by_their_folder_at_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    (tmp_path / "docs" / "adr" / "x.md").write_text("It was said, and nobody heard.")
    (tmp_path / "README.md").write_text("Said.")
    found = counted(["docs/adr/x.md", "README.md", "CHANGELOG.md"])
    assert {area: count.total() for area, count in found.items()} == {"docs/adr": 3, ".": 1}


def test_ceilings_fall_and_never_rise() -> None:
    source = Path(words.__file__).read_text()
    fallen = lowered(source, {"docs": CEILINGS["docs"] - 1, "streams": CEILINGS["streams"] + 1, "new": 7})
    numbers = dict(re.findall(r'^    "([\w./]+)": (\d+),$', fallen, flags=re.MULTILINE))
    assert numbers == {"docs": str(CEILINGS["docs"] - 1), "streams": str(CEILINGS["streams"]), "new": "0"}
    assert fallen.split("CEILINGS")[0] == source.split("CEILINGS")[0]
