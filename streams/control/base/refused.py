"""Why a message was refused before any handler has seen it, in words of one or two."""

from __future__ import annotations

from collections.abc import Mapping

#: The type of the error of bytes that no decoder takes.
UNDECODABLE = "Undecodable"
#: By the type of the error: of one message, and of several.
_WORDS: Mapping[str, tuple[str, str]] = {
    UNDECODABLE: ("cannot be decoded", "cannot be decoded"),
    "SchemaNeverAnnounced": ("has a schema that nobody announced", "have a schema that nobody announced"),
    "MissingHeader": ("has no id, key or value", "have no id, key or value"),
    "KeyMismatch": (
        "has a record key that differs from its own key",
        "have record keys that differ from their own keys",
    ),
    "HeaderTooLong": ("has a header that is too long", "have a header that is too long"),
    "TooLarge": ("is too large", "are too large"),
    "Unreadable": ("is a damaged record", "are damaged records"),
    "BadReference": ("has an invalid reference to an object", "have invalid references to objects"),
    "BlobMissing": ("refers to an object that is gone", "refer to objects that are gone"),
}


def refused(error_type: str, count: int = 1) -> str:
    """The end of a sentence about so many messages that were refused for an error."""
    one, several = _WORDS.get(error_type, (f"failed with {error_type}", f"failed with {error_type}"))
    return one if count == 1 else several
