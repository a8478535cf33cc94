"""Whether each object that something refers to is in the object store, and named by a row: pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from demo.findings import Finding, finding
from streams.claims.claim import BadReference, claim_in
from streams.ports import Record


class Referred(NamedTuple):
    """An object that a record refers to: what size it says, and where the record lies."""

    size: int
    by: str


def referred_in(record: Record) -> tuple[str, Referred] | None:
    """The object that a record refers to; None when it has its payload with it, or cannot be followed."""
    try:
        claim = claim_in(dict(record.headers))
    except BadReference:
        return None
    if claim is None:
        return None
    return claim.name, Referred(claim.size, f"{record.topic}[{record.partition}] {record.offset}")


def judge_objects(referred: Mapping[str, Referred], objects: Mapping[str, int], named: Set[str]) -> Finding:
    """`objects` are those in the store, with their sizes; `named`, those that rows keep from the sweeper."""
    wrong = {
        "missing": [f"{name} of {each.by}" for name, each in referred.items() if name not in objects],
        "of another size": [
            f"{name}: {objects[name]}, not {each.size}"
            for name, each in referred.items()
            if objects.get(name, each.size) != each.size
        ],
        "that no row names": [f"{name} of {each.by}" for name, each in referred.items() if name not in named],
    }
    size = sum(each.size for each in referred.values())
    orphans = len(objects.keys() - referred.keys())
    says = f"{len(referred):,} objects, {size:,} bytes, and {orphans:,} that nothing refers to"
    return finding("every object there that a message refers to", wrong, says)
