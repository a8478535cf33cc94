"""The object store as a client of S3 sees it, and whether each payload is there, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

from chaos.evidence.decoding import DATAREF, SHA256, SIZE
from demo.findings import Finding, finding

if TYPE_CHECKING:
    from streams.ports import Record
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import boto3
from botocore.config import Config

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


BUCKET, KEYS = "event-payloads", ("local", "local-secret")
_THREADS = 8


class BucketReader:
    """The bucket of a run, at the URL of its store. What is not to be had raises botocore's errors."""

    def __init__(self, url: str) -> None:
        config = Config(max_pool_connections=_THREADS, s3={"addressing_style": "path"})
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=url,
            aws_access_key_id=KEYS[0],
            aws_secret_access_key=KEYS[1],
            region_name="us-east-1",
            config=config,
        )

    def read(self, name: str) -> bytes:
        """An object's bytes."""
        answer = self._client.get_object(Bucket=BUCKET, Key=name)
        return bytes(answer["Body"].read())

    def stored(self) -> dict[str, StoredObject]:
        """Every payload, each read from its first byte to its last."""
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(threads.map(self._stored, self._names()))

    def _names(self) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=PREFIX):
            yield from (each["Key"] for each in page.get("Contents", ()))

    def _stored(self, name: str) -> tuple[str, StoredObject]:
        data = self.read(name)
        return name, StoredObject(len(data), sha256(data).hexdigest())


#: Gives the bytes of an object by its name.
Read = Callable[[str], bytes]
