"""Claim checks: a payload that is too large for a record, or binary, is stored as an object, and the record
refers to it.

Does no I/O. The object's name contains its digest. If a rerun produces other bytes, they become another
object, and writing the same bytes again is harmless (docs/adr/0010).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

from streams.errors import BlobAltered, DataError
from streams.ports import Headers

DATAREF = "ce_dataref"
#: CloudEvents' `datacontenttype`, the only attribute without `ce_` in Kafka's binary mode.
CONTENT_TYPE = "content-type"
SHA256 = "claim-sha256"
SIZE = "claim-size"

PREFIX = "events/"
"""The beginning of the names of all claim-check objects."""

DEFAULT_THRESHOLD = 900 * 1024
"""Bytes of a payload that still travels in its record."""

AVRO = "application/avro"

VALUE = b""
"""The value of a record that refers to its payload: not None, which would be a tombstone."""

_MAX_PART = 120
"""Characters of a type or an id in a name: a file behind an S3 has at most 255, the digest takes 65."""

_MAX_CONTENT_TYPE = 256
"""Bytes of a content type that are kept: claims are cached."""

_MAX_FILE = 255
"""Bytes of a part of a name that a store which keeps files can have."""

_REFERENCE = re.compile(r"s3://([a-z0-9][a-z0-9.-]+)/([!-~]{1,1024})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_COUNT = re.compile(r"[0-9]{1,15}")
_HEADERS = {DATAREF, CONTENT_TYPE, SHA256, SIZE}


class BadReference(DataError):
    """A message refers to its payload in a way that cannot be followed."""


class Claim(NamedTuple):
    """A reference to the object with a message's payload.

    Attributes:
        bucket: bucket of the object.
        name: name of the object.
        content_type: media type of its bytes.
        sha256: digest of its bytes, 64 hexadecimal digits.
        size: its size in bytes.
    """

    bucket: str
    name: str
    content_type: str
    sha256: str
    size: int

    @property
    def reference(self) -> str:
        """The object's address in messages and texts: `s3://bucket/name`."""
        return f"s3://{self.bucket}/{self.name}"


def claim_of(bucket: str, message_type: str, message_id: str, data: bytes, content_type: str = AVRO) -> Claim:
    """The claim for a message's payload; hashing it takes about 1 ms for each MB."""
    digest = sha256(data).hexdigest()
    return Claim(bucket, object_name(message_type, message_id, digest), content_type, digest, len(data))


def object_name(message_type: str, message_id: str, digest: str) -> str:
    """`events/{type}/{id}-{sha256}`. Type and id are percent-encoded; very long ones are cut and hashed."""
    return f"{PREFIX}{_part(message_type)}/{_part(message_id)}-{digest}"


def _part(text: str) -> str:
    """The text encoded as a part of a path: without slashes, and neither empty nor only dots."""
    part = quote(text, safe="", errors="replace")
    if not part.strip("."):
        return part.replace(".", "%2E") or "-"
    if len(part) <= _MAX_PART:
        return part
    return f"{part[: _MAX_PART - 33]}.{sha256(text.encode(errors='replace')).hexdigest()[:32]}"


def is_due(
    payload: int, rest: int, *, limit: int, threshold: int = DEFAULT_THRESHOLD, binary: bool = False
) -> bool:
    """Whether a payload must be stored as an object. All sizes are in bytes.

    Args:
        payload: size of the encoded message.
        rest: size of the rest of the record: key, headers and framing.
        limit: largest record of the topic.
        threshold: larger payloads are stored as objects, even if they fit the topic.
        binary: whether the message's class is marked as binary; its payloads are always stored as objects.
    """
    return binary or payload > threshold or payload + rest > limit


def with_claim(headers: Headers, claim: Claim) -> list[tuple[str, bytes]]:
    """The headers of a message with a claim. The value of its record must be `VALUE`."""
    return [
        *(header for header in headers if header[0] not in _HEADERS),
        (DATAREF, claim.reference.encode()),
        (CONTENT_TYPE, claim.content_type.encode()),
        (SHA256, claim.sha256.encode()),
        (SIZE, b"%d" % claim.size),
    ]


def without_claim(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """The headers without a claim, for a message whose payload is in its record after all."""
    refers = any(name == DATAREF and value is not None for name, value in headers)
    return [header for header in headers if not refers or header[0] not in _HEADERS]


def claim_in(headers: Mapping[str, bytes]) -> Claim | None:
    """The claim in a message's headers; None if the payload is in the record's value.

    Raises:
        BadReference: the reference, its digest or its size is missing or malformed.
    """
    # With change data capture, a NULL column becomes a header without a value.
    if headers.get(DATAREF) is None:
        return None
    reference = _matched(headers, DATAREF, _REFERENCE)
    if not all(0 < len(part) <= _MAX_FILE and part.strip(".") for part in reference[2].split("/")):
        # For such names, a store may fail as in an outage instead of answering that the object is missing.
        raise BadReference(f"the header {DATAREF} does not name an object: {reference[0][:200]}")
    digest = _matched(headers, SHA256, _DIGEST)
    size = _matched(headers, SIZE, _COUNT)
    content_type = (headers.get(CONTENT_TYPE) or b"")[:_MAX_CONTENT_TYPE].decode("utf-8", "replace")
    return Claim(reference[1], reference[2], content_type, digest[0], int(size[0]))


def _matched(headers: Mapping[str, bytes], name: str, form: re.Pattern[str]) -> re.Match[str]:
    data = headers.get(name)
    if data is None:
        raise BadReference(f"{DATAREF} comes without the header {name}: its payload could not be verified")
    found = form.fullmatch(data.decode("utf-8", "replace"))
    if found is None:
        raise BadReference(f"the header {name} does not read: {data[:200]!r}")
    return found


def verify(claim: Claim, data: bytes) -> None:
    """Raises BlobAltered if the bytes differ from those that were stored."""
    if len(data) != claim.size:
        found = f"{len(data)} bytes" if len(data) < claim.size else "more bytes"
        raise BlobAltered(
            f"{claim.reference} is not what was checked in: it has {found}, the message says {claim.size}"
        )
    if (digest := sha256(data).hexdigest()) != claim.sha256:
        raise BlobAltered(
            f"{claim.reference} is not what was checked in: its SHA-256 is {digest},"
            f" the message says {claim.sha256}"
        )
