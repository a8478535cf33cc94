"""Avro schemas of every message and row, every version kept: `<kind>/<topic or table>/<version>.avsc`.

The highest version is the one that is written; the older ones are what may still lie in a topic. To change a
message or row, add a version that can read the one before, and change its class to match.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

KINDS = ("events", "commands", "replies", "rows")


def latest(subject: str) -> str:
    """The current schema of a topic's messages or a table's rows, as text. Raises LookupError."""
    return versions(subject)[-1]


def versions(subject: str) -> list[str]:
    """All schemas of a topic or table as text, the oldest first. Raises LookupError."""
    for kind in KINDS:
        folder = files(__name__) / kind / subject
        if folder.is_dir():
            return [file.read_text("utf-8") for file in sorted(folder.iterdir(), key=_version)]
    raise LookupError(
        f"{subject} has no schema: add schemas/events/{subject}/1.avsc for an event, or the same under "
        "commands/ or rows/"
    )


def _version(file: Traversable) -> int:
    return int(file.name.removesuffix(".avsc"))
