"""Whether each object that something refers to is there, byte for byte, and named by a row: pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

from chaos.evidence.headers import DATAREF, SHA256, SIZE
from demo.findings import Finding, finding

if TYPE_CHECKING:
    from streams.ports import Record

#: What the names of all objects that are payloads begin with.
PREFIX = "events/"


class StoredObject(NamedTuple):
    """An object in the store: its size in bytes, and the SHA-256 of its bytes in hexadecimal digits."""

    size: int
    digest: str


class Referred(NamedTuple):
    """An object that a record refers to: what size and digest it says, and where the record lies."""

    size: int
    digest: str
    by: str


def referred_in(record: Record) -> tuple[str, Referred] | None:
    """The object that a record refers to; None when it has its payload with it, or cannot be followed."""
    headers = dict(record.headers)
    scheme, _, path = headers.get(DATAREF, b"").decode("utf-8", "replace").partition("://")
    name = path.partition("/")[2]
    size, digest = headers.get(SIZE, b""), headers.get(SHA256, b"").decode("utf-8", "replace")
    if scheme != "s3" or not name or not size.isdigit():
        return None
    return name, Referred(int(size), digest, f"{record.topic}[{record.partition}] {record.offset}")


def judge_objects(
    referred: Mapping[str, Referred], objects: Mapping[str, StoredObject], named: Set[str]
) -> Finding:
    """`objects` are those in the store; `named`, those that rows keep from the sweeper."""
    both = {name: (objects[name], each) for name, each in referred.items() if name in objects}
    wrong = {
        "missing": [f"{name} of {each.by}" for name, each in referred.items() if name not in objects],
        "of another size": [
            f"{name}: {stored.size}, not {each.size}"
            for name, (stored, each) in both.items()
            if stored.size != each.size
        ],
        "with other bytes": [
            f"{name} of {each.by}"
            for name, (stored, each) in both.items()
            if stored.size == each.size and not stored.digest == each.digest == name[-len(each.digest) :]
        ],
        "that no row names": [f"{name} of {each.by}" for name, each in referred.items() if name not in named],
    }
    size = sum(each.size for each in referred.values())
    orphans = len(objects.keys() - referred.keys())
    says = f"{len(referred):,} objects, {size:,} bytes by SHA-256, and {orphans:,} that nothing refers to"
    return finding("every object there that a message refers to", wrong, says)
