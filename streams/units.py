"""Units that sizes and times are counted in."""

from __future__ import annotations

#: Bytes.
KIB = 1 << 10
MIB = 1 << 20
#: Seconds.
DAY = 86_400.0
