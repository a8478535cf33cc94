"""The public names for reading topics that others write in their own form (docs/existing-topics.md).

    from streams.sources import SourceRecord, field, json, source

Modules of the library do not import from here.
"""

from __future__ import annotations

from streams.model.choreography import source
from streams.model.sources import (
    Format,
    SourceRecord,
    Start,
    at,
    earliest,
    field,
    group,
    header,
    json,
    latest,
    raw,
)
from streams.ports import Record

__all__ = [
    "Format",
    "Record",
    "SourceRecord",
    "Start",
    "at",
    "earliest",
    "field",
    "group",
    "header",
    "json",
    "latest",
    "raw",
    "source",
]
