"""What the eye cannot see, or is led astray by, is an escape on every page and in every command."""

import asyncio
import json

import pytest
from typer.testing import CliRunner
from web_workers import NOW

from streams.cli.main import app
from streams.control.base.visible import visible

RIGHT_TO_LEFT = "\u202egnp.exe"


@pytest.mark.promise("any-key")
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (
            "order-1 \u05d0\u05d1 \u00e9\u4e2d\U0001f600\u00a0x",
            "order-1 \u05d0\u05d1 \u00e9\u4e2d\U0001f600\u00a0x",
        ),
        ("a\nb\tc", "a\nb\tc"),
        ("a\x1b[31mb\x00\x7f\r", "a\\u001b[31mb\\u0000\\u007f\\u000d"),
        (RIGHT_TO_LEFT, "\\u202egnp.exe"),
        ("a\u200bb\u2028c\ud800\ue000", "a\\u200bb\\u2028c\\ud800\\ue000"),
        ("\U000e0001", "\\udb40\\udc01"),
        ("cafe\u0301 caf\u00e9", "cafe\\u0301 caf\u00e9"),  # NFD and NFC of the same word
        ("\u1112\u1161\u11ab \ud55c", "\u1112\\u1161\\u11ab \ud55c"),
        ("\u212b \u00c5", "\\u212b \u00c5"),
        ("q\u0301", "q\u0301"),  # NFC has no other way to write it
    ],
)
def test_characters_without_a_glyph_are_escapes(text, seen):
    assert visible(text) == seen
    if "\n" not in text and "\r" not in text:
        assert json.loads(visible(json.dumps({"k": text}, ensure_ascii=False))) == {"k": text}


async def test_pages_show_keys_and_values_as_escapes(worker, browser):
    key = f"k{RIGHT_TO_LEFT}"
    worker.put(key, note=f"\x1b]0;{RIGHT_TO_LEFT}")
    ident = worker.put_letter(key, why=RIGHT_TO_LEFT)
    worker.wait(key, since=NOW)
    paths = ("/waiting", f"/dead-letters/{ident}", "/dead-letters/letters", "/tables/parcels")
    for path in (*paths, "/dead-letters", f"/search?q={key}"):
        await browser.shows(path, "\\u202egnp.exe", hides="\x1b")
    for path in paths:
        page = await browser.shows(path)
        shown = [line for line in page.splitlines() if "\u202e" in line]
        assert all('value="k' in line for line in shown), "only a form sends it back as it is"


async def test_commands_print_escapes(worker, browser):
    worker.wait(f"k{RIGHT_TO_LEFT}\nforged")
    for words in (["waiting"], ["waiting", "--json"]):
        result = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--worker", browser.url])
        assert result.exit_code == 0
        assert "\\u202e" in result.stdout
        assert "\u202e" not in result.stdout
        assert not [line for line in result.stdout.splitlines() if line.startswith("forged")]
