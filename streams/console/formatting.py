"""Numbers and bytes in the form that people read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from markupsafe import Markup, escape

from streams.control.base.visible import visible
from streams.model.envelope import epoch_seconds

#: Bytes that are shown at most.
MOST_DUMPED = 16_384
_A_LINE = 16
#: Characters of a value that a message may name.
_LEAST_MARKED = 3
#: Fields of a value in a list, and characters of each.
_MOST_PREVIEWED, _MOST_SHORT = 8, 60
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)")
_TOO_SHORT = re.compile(r"Expected (\d+) bytes, read (\d+)")
_SAME_DAY = 12 * 3600.0
#: Seconds of a unit, and the largest number that is written in it.
_UNITS = ((1.0, "s", 120.0), (60.0, "min", 120.0), (3600.0, "h", 48.0), (86400.0, "d", float("inf")))


def rate_text(rate: float) -> str:
    """So many each second."""
    if rate <= 0:
        return "0/s"
    if rate < 0.1:
        return "<0.1/s"
    return f"{rate:.1f}/s" if rate < 10 else f"{rate:,.0f}/s"


def seconds_text(seconds: float | None) -> str:
    """A length of time. Empty where there is none."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    for size, unit, most in _UNITS:
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}" if seconds / size >= 10 else f"{seconds / size:.1f} {unit}"
    return ""


def age_text(seconds: float) -> str:
    """An age in whole units: `12 min`. A moment is `0 s`."""
    for size, unit, most in _UNITS:
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return ""


def ago(text: str, now: float, form: str = "{} ago") -> str:
    """A time in RFC 3339 as its age, in `form`, with the full time as title; a time to come as `in 12 s`. Any
    other text as it is.
    """
    at = epoch_seconds(text)
    if at is None:
        return text
    passed = now - at
    words = form.format(age_text(passed)) if passed >= 0 else f"in {age_text(-passed)}"
    full = text.replace("T", " ").replace("Z", " UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(text, full, words)


def with_times(text: str, now: float) -> Markup:
    """A text in which each time in RFC 3339 is the time of day, with the full time as title; one that is not
    of these twelve hours has its date, too.
    """
    parts = _TIME.split(text)
    for place in range(1, len(parts), 2):
        at, full = epoch_seconds(parts[place]) or 0.0, parts[place].replace("T", " ").replace("Z", " UTC")
        short = f"{full[11:19]} UTC" if abs(now - at) < _SAME_DAY else f"{full[:16]} UTC"
        parts[place] = Markup('<time datetime="{}" title="{}">{}</time>').format(parts[place], full, short)
    return Markup("").join(part if place % 2 else visible(part) for place, part in enumerate(parts))


def marked(value: Any, message: str, known: str = "") -> Markup:
    """A value as JSON, in which the values that an error message names are marked, except the one `known`."""
    text = str(escape(msgspec.json.format(msgspec.json.encode(value)).decode()))
    for _, leaf, _ in leaves(value, {}):
        words = leaf if isinstance(leaf, str) else msgspec.json.encode(leaf).decode()
        if len(words) >= _LEAST_MARKED and words in message and words != known:
            token = str(escape(msgspec.json.encode(leaf).decode()))
            text = text.replace(f": {token}", f": <mark>{token}</mark>")
    return Markup(visible(text))


def bytes_text(count: int) -> str:
    """Bytes, to three digits or so."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def leaves(before: Any, after: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The parts of a difference, by the dotted names of their fields; None is for what is not there. What
    has come or gone as a whole is one part.
    """
    if not isinstance(before, dict) or not isinstance(after, dict) or not (before or after):
        yield name, before, after
        return
    for each in {**before, **after}:
        dotted = f"{name}{each}" if each.startswith("[") or not name else f"{name}.{each}"
        yield from leaves(before.get(each), after.get(each), dotted)


def previewed(value: Any, names: str = "") -> list[tuple[str, str]]:
    """Fields of a value with short texts: those that are named by the ends of their dotted names, with spaces
    between; else the first ones that are not empty. What is no object has no name.
    """
    found = [(name, leaf) for name, leaf, _ in leaves(value, value)]
    if wanted := [f".{name}" for name in names.split()]:
        found = [each for each in found if f".{each[0]}".endswith(tuple(wanted))]
    else:
        found = [each for each in found if each[1] not in (None, "", [], {})]
    return [(name.rpartition(".")[2], _short(leaf)) for name, leaf in found[:_MOST_PREVIEWED]]


def _short(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(_short(each) for each in value[:_MOST_PREVIEWED])
    elif isinstance(value, dict):
        text = " ".join(map(_short, value.values()))
    else:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_SHORT else f"{text[:_MOST_SHORT]}..."


def wanted_bytes(error: str, count: int) -> str:
    """How many bytes a value has, and, where the error of Avro says so, how many its schema wants."""
    has = f"{count:,} byte{'' if count == 1 else 's'}"
    if found := _TOO_SHORT.search(error):
        return f"{has}, but its schema needs {count - int(found[2]) + int(found[1]):,}"
    return f"{has}, not valid for its schema"


def dump(digits: str) -> str:
    """Bytes, given as hex digits: their offset, their digits, and what of them is ASCII."""
    data = bytes.fromhex(digits)
    lines = []
    for at in range(0, min(len(data), MOST_DUMPED), _A_LINE):
        part = data[at : at + _A_LINE]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * min(_A_LINE, len(data)) - 1}}  {text}")
    if len(data) > MOST_DUMPED:
        lines.append(f"... {len(data) - MOST_DUMPED:,} more bytes")
    return "\n".join(lines)
