"""Units that sizes and times are counted in."""

from __future__ import annotations

#: Bytes.
MIB = 1 << 20
#: Seconds.
DAY = 86_400.0
