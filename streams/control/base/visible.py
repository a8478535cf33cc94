"""Text from outside in a form that is safe for the eye."""

from __future__ import annotations

from unicodedata import category, is_normalized, normalize

#: Categories without a glyph, or that end a line: control, format, surrogates, private, unassigned.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

#: Vowels and final consonants of Korean, which are one syllable with what is before them.
_JAMO = frozenset(map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]))


def visible(text: str, kept: str = "\n\t") -> str:
    """The text, with characters that cannot be seen, or change how others look, as JSON escapes them: JSON
    stays the same value. So are parts that look like other characters, as NFD looks like NFC.
    """
    if not text.isascii() and not is_normalized("NFC", text):
        return "".join(_told_apart(part, kept) for part in _parts(text))
    return _seen(text, kept)


def _seen(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each in kept else _visible(each) for each in text)


def _parts(text: str) -> list[str]:
    """The text in parts that may be one character each: one with its marks, or the letters of a syllable."""
    parts: list[str] = []
    for each in text:
        if parts and (category(each)[0] == "M" or each in _JAMO):
            parts[-1] += each
        else:
            parts.append(each)
    return parts


def _told_apart(part: str, kept: str) -> str:
    """A part that NFC writes otherwise: its first character, if that is the same there, and escapes."""
    if is_normalized("NFC", part):
        return _seen(part, kept)
    first = part[0] if normalize("NFC", part[0]) == part[0] else _escaped(part[0])
    return first + "".join(map(_escaped, part[1:]))


def _visible(character: str) -> str:
    return _escaped(character) if category(character) in _UNSEEN else character


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
