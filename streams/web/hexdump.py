"""Bytes for people."""

from __future__ import annotations

#: Bytes that are shown at most.
MOST_DUMPED = 16_384
_A_LINE = 16


def dump(digits: str) -> str:
    """Bytes, given as hex digits: their offset, their digits, and what of them is ASCII."""
    data = bytes.fromhex(digits)
    lines = []
    for at in range(0, min(len(data), MOST_DUMPED), _A_LINE):
        part = data[at : at + _A_LINE]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * _A_LINE - 1}}  {text}")
    if len(data) > MOST_DUMPED:
        lines.append(f"... {len(data) - MOST_DUMPED:,} bytes more")
    return "\n".join(lines)
