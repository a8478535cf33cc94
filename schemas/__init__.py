"""The frozen Avro schemas of the order application, every version: `<kind>/<topic or table>/<version>.avsc`.

To change a message or row, change its class; `steadfaust schemas write` freezes the next version.
"""

from __future__ import annotations

from importlib.resources import files

from streams.model.schema_versions import FrozenSchemas

FROZEN = FrozenSchemas(files(__name__))


def latest(subject: str) -> str:
    """The current schema of a topic's messages or a table's rows, as text. Raises LookupError."""
    return FROZEN.latest(subject)


def versions(subject: str) -> list[str]:
    """All schemas of a topic or table as text, the oldest first. Raises LookupError."""
    return FROZEN.versions(subject)
