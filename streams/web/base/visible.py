"""Text from outside in a form that is safe for the eye."""

from __future__ import annotations

from unicodedata import category

#: Categories without a glyph, or that end a line: control, format, surrogates, private, unassigned.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str, kept: str = "\n\t") -> str:
    """The text, with characters that cannot be seen, or change how others look, as JSON escapes them: JSON
    stays the same value.
    """
    if text.isprintable():
        return text
    return "".join(each if each in kept else _visible(each) for each in text)


def _visible(character: str) -> str:
    if category(character) not in _UNSEEN:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
