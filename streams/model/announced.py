"""Schemas that workers have announced to each other, and the order of a class's versions."""

from __future__ import annotations

import json

import fastavro
from fastavro.schema import fingerprint as schema_fingerprint
from fastavro.schema import to_parsing_canonical_form

from streams.errors import Undecodable, UnknownSchema


class Schemas:
    """Writers' schemas by fingerprint: our own and those that others announced. Also the versions of each
    topic's and table's class, in the order of their announcements.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        #: Offsets of the announcements by fingerprint; a higher offset means a newer schema.
        self._announced: dict[str, int] = {}
        self._versions: dict[str, dict[str, tuple[int, str]]] = {}

    def add(self, text: str, at: int | None = None) -> str:
        """Learn a schema; returns its fingerprint, 16 hexadecimal digits (CRC-64-AVRO). `at` is the offset of
        its announcement.

        Raises Undecodable when the text is not a schema.
        """
        try:
            fastavro.parse_schema(json.loads(text))
            fingerprint = fingerprint_of(text)
        except Exception as error:  # fastavro raises various errors for invalid schemas
            raise Undecodable(f"{text[:200]!r} is not a schema: {type(error).__name__}: {error}") from error
        self._texts[fingerprint] = text
        if at is not None:
            self._announced.setdefault(fingerprint, at)
        return fingerprint

    def add_version(self, subject: str, fingerprint: str, text: str, at: int) -> None:
        """Add a version of the class of a topic or table; `at` is the offset of its announcement."""
        self._versions.setdefault(subject, {}).setdefault(fingerprint, (at, text))

    def newest(self, subject: str) -> tuple[str, str] | None:
        """Fingerprint and text of the newest announced version of a topic's or table's class."""
        versions = self._versions.get(subject)
        if not versions:
            return None
        fingerprint = max(versions, key=lambda each: versions[each][0])
        return fingerprint, versions[fingerprint][1]

    def knows_version(self, subject: str, fingerprint: str) -> bool:
        """Whether the version with this fingerprint was announced for the topic or table."""
        return fingerprint in self._versions.get(subject, ())

    def newer_version(self, subject: str, than: str) -> str:
        """Fingerprint of the newest version if it was announced after `than`; empty otherwise."""
        newest = self.newest(subject)
        is_newer = newest is not None and self.knows_version(subject, than) and newest[0] != than
        return newest[0] if newest is not None and is_newer else ""

    def compare(self, theirs: str, ours: str) -> int:
        """Returns 1 if `theirs` was announced after `ours`, -1 if before, 0 if either was not announced."""
        at, own = self._announced.get(theirs), self._announced.get(ours)
        return 0 if at is None or own is None else 1 if at > own else -1

    def get(self, fingerprint: str) -> str:
        """The schema's text. Raises UnknownSchema."""
        try:
            return self._texts[fingerprint]
        except KeyError:
            raise UnknownSchema(fingerprint) from None

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._texts


def fingerprint_of(schema: str) -> str:
    """The CRC-64-AVRO fingerprint of the schema's parsing canonical form, 16 hexadecimal digits."""
    return str(schema_fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))
