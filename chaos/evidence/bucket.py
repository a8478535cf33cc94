"""The object store as any client of S3 sees it: what is in it, by the bytes that it gives out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import boto3
from botocore.config import Config

from chaos.evidence.objects import PREFIX, StoredObject

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
