"""The objects of an S3 bucket, by boto3 in a few threads."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from streams.errors import BlobArchived, BlobMissing, BlobsUnavailable, missing_extra
from streams.ports import Blob
from streams.s3.refusals import ARCHIVED, code_of, told

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    from streams.s3.transfers import Transfer, TransferEnded, watch
except ModuleNotFoundError as error:
    raise missing_extra("s3", "Payloads in S3", error) from error


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach a bucket. Times in seconds.

    Attributes:
        bucket: its name.
        endpoint: URL of a store that is not Amazon's; empty: Amazon's.
        access_key: with `secret_key` what requests are signed with; empty: what boto3 finds by itself.
        region: empty: what boto3 finds by itself, or us-east-1 when there is an endpoint.
        connect_timeout: for a connection to come about.
        read_timeout: for the next bytes of an answer.
        timeout: for a whole request, waiting for a free thread included.
        threads: requests at a time.
    """

    bucket: str
    endpoint: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    region: str = ""
    connect_timeout: float = 2.0
    read_timeout: float = 5.0
    timeout: float = 30.0
    threads: int = 8

    def client(self) -> Any:
        """A boto3 client, which threads may share."""
        config = Config(
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            # A lane decides what is tried again, and when; retries in here would only hide an outage from it.
            retries={"total_max_attempts": 1},
            max_pool_connections=self.threads,
            # Stores of others refuse or miss the checksums that boto3 adds of itself; we verify digests.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # A bucket in the host name needs a wildcard in DNS, which few stores of one's own have.
            s3={"addressing_style": "path"} if self.endpoint else {},
        )
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint or None,
            aws_access_key_id=self.access_key or None,
            aws_secret_access_key=self.secret_key or None,
            region_name=self.region or ("us-east-1" if self.endpoint else None),
            config=config,
        )
        watch(client)
        if self.endpoint:
            client.meta.events.register_last("before-parameter-build.s3", _is_not_redirected)
        return client


def _is_not_redirected(context: dict[str, Any], **_: Any) -> None:
    """Let boto3 follow no redirect to another region: stores of others have none, and where an answer does
    not name the region it asks for it by a request that is redirected, without end.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


P = ParamSpec("P")
T = TypeVar("T")

DELETE_AT_ONCE = 1000
"""As many as S3 takes in one request."""

_CHUNK = 1 << 18
_MISSING = {"NoSuchKey", "404"}
#: Between attempts to end a request that was given up before it had a connection, in seconds.
_AGAIN = 0.5


class S3Blobs:
    """A bucket. Make it in the composition root: loading boto3's description of S3 takes some 100 ms."""

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._client = options.client()
        self._threads = ThreadPoolExecutor(options.threads, thread_name_prefix="s3")
        self._under_way: set[Transfer] = set()

    @property
    def bucket(self) -> str:
        """Its name."""
        return self._options.bucket

    async def put(self, name: str, data: bytes, content_type: str) -> None:
        """Write an object. What was altered on the way is refused by S3, and raises BlobsUnavailable."""
        await self._run(f"write {name}", _put, self._options.bucket, name, data, content_type)

    async def get(self, name: str, *, at_most: int | None = None) -> bytes:
        """Its bytes, or the first `at_most`."""
        try:
            return await self._run(f"read {name}", _get, self._options.bucket, name, at_most)
        except _Archived as error:
            raise BlobArchived(
                f"s3://{self._options.bucket}/{name} is archived ({error}): restore it (aws s3api"
                " restore-object), then replay this message. Let no lifecycle rule archive payloads"
            ) from None
        except _Missing:
            raise BlobMissing(
                f"s3://{self._options.bucket}/{name} is not there, at {self._where}: it was deleted, or never"
                " written"
            ) from None

    async def head(self, name: str) -> Blob | None:
        """S3's entry for an object; None when there is none."""
        try:
            return await self._run(f"ask for {name}", _head, self._options.bucket, name)
        except _Missing:
            return None

    async def scan(self, prefix: str, *, older_than: float | None = None) -> AsyncIterator[Blob]:
        """Objects in the order of their names, a page of up to 1000 at a time."""
        what, token = f"list {prefix}", ""
        while True:
            page, token = await self._run(what, _list, self._options.bucket, prefix, token)
            for blob in page:
                if older_than is None or blob.modified < older_than:
                    yield blob
            if not token:
                return

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects, 1000 in a request."""
        for start in range(0, len(names), DELETE_AT_ONCE):
            some = names[start : start + DELETE_AT_ONCE]
            await self._run(f"delete {len(some)} objects", _delete, self._options.bucket, some)

    async def close(self) -> None:
        """Let go of threads and connections, and end the requests that are under way."""
        for transfer in self._under_way:
            transfer.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _run(
        self, what: str, request: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Make a request in a thread; what goes wrong becomes ours. When nobody waits for it any more, its
        connection is closed, so that the thread is free.
        """
        transfer = Transfer()
        running = self._threads.submit(transfer.run, lambda: request(self._client, *args, **kwargs))
        self._under_way.add(transfer)
        try:
            async with asyncio.timeout(self._options.timeout):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            why = f"no answer within {self._options.timeout:g} s"
            raise self._unavailable(what, why, why) from None
        except TransferEnded:
            raise self._unavailable(what, "it was closed meanwhile", "it was closed") from None
        except ClientError as error:
            if code_of(error) in _MISSING:
                raise _Missing from None
            if code_of(error) in ARCHIVED:
                raise _Archived(told(error)) from None
            raise self._unavailable(what, told(error), told(error, shortly=True)) from error
        except BotoCoreError as error:
            raise self._unavailable(what, told(error), told(error, shortly=True)) from error
        finally:
            self._end(transfer, running)

    def _end(self, transfer: Transfer, running: Future[Any]) -> None:
        """End a request in its thread, again and again until it has ended: it may have no connection yet."""
        if running.done():
            self._under_way.discard(transfer)
            return
        transfer.end()
        asyncio.get_running_loop().call_later(_AGAIN, self._end, transfer, running)

    def _unavailable(self, what: str, why: str, cause: str) -> BlobsUnavailable:
        where = f"bucket {self._options.bucket} of {self._where}"
        return BlobsUnavailable(f"cannot {what} in {where}: {why}", cause=f"{where}: {cause}")

    @property
    def _where(self) -> str:
        """The endpoint, also that of Amazon which boto3 has chosen."""
        return str(self._client.meta.endpoint_url)


class _Missing(Exception):
    """There is no such object."""


class _Archived(Exception):
    """There is one, in an archive."""


def _put(client: Any, bucket: str, name: str, data: bytes, content_type: str) -> None:
    # MD5 is for errors on the way, and the one digest that every store verifies.
    digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
    client.put_object(Bucket=bucket, Key=name, Body=data, ContentType=content_type, ContentMD5=digest)


def _get(client: Any, bucket: str, name: str, at_most: int | None) -> bytes:
    data = bytearray()
    with closing(client.get_object(Bucket=bucket, Key=name)["Body"]) as body:
        while at_most is None or len(data) < at_most:
            chunk = body.read(_CHUNK if at_most is None else min(_CHUNK, at_most - len(data)))
            if not chunk:
                break
            data += chunk
    return bytes(data)


def _head(client: Any, bucket: str, name: str) -> Blob:
    try:
        found = client.head_object(Bucket=bucket, Key=name)
    except ClientError as error:
        if code_of(error) in _MISSING:  # the answer to HEAD has no body: is it the object, or the bucket?
            _require(client, bucket)
        raise
    return Blob(name, found["ContentLength"], found["LastModified"].timestamp())


def _require(client: Any, bucket: str) -> None:
    """Raises ClientError for a bucket that is not there. A right to ask may be missing: then it is taken for
    there.
    """
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if code_of(error) in _MISSING:
            gone = {"Code": "NoSuchBucket", "Message": "the bucket does not exist"}
            raise ClientError({"Error": gone}, "HeadBucket") from None


def _list(client: Any, bucket: str, prefix: str, token: str) -> tuple[list[Blob], str]:
    more = {"ContinuationToken": token} if token else {}
    page = client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
    found = [
        Blob(each["Key"], each["Size"], each["LastModified"].timestamp()) for each in page.get("Contents", [])
    ]
    return found, page.get("NextContinuationToken", "")


def _delete(client: Any, bucket: str, names: Sequence[str]) -> None:
    wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
    errors = client.delete_objects(Bucket=bucket, Delete=wanted).get("Errors", [])
    if refused := [each for each in errors if each["Code"] not in _MISSING]:
        raise ClientError({"Error": refused[0]}, "DeleteObjects")
