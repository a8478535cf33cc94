"""SQL from `.sql` files beside the module that uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def statements(file: str | Path) -> Mapping[str, str]:
    """The statements of a file in this folder, or of one with its whole path, by their names: each follows a
    line `-- name: ...`.
    """
    parts = _NAME.split((Path(__file__).parent / file).read_text())
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
