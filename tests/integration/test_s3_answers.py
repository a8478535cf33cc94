"""What the S3 adapter makes of answers that S3Proxy does not give when it is asked to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from streams.errors import BlobArchived, BlobMissing, BlobsUnavailable
from streams.ports import Blobs
from streams.s3 import S3Blobs, S3Options
from tests.waiting import BOUND, eventually_async

pytestmark = pytest.mark.promise("object-store-refusals")

NAME = "events/order/1-a"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def s3_that(answer: Answer, *, timeout: float = 10.0, threads: int = 8) -> AsyncIterator[S3Blobs]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/")).rstrip("/")
        blobs = S3Blobs(S3Options("gifts", url, "key", "secret", timeout=timeout, threads=threads))
        yield blobs
        await blobs.close()


def error(status: int, code: str, asked: list[str]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        return web.Response(status=status, text=f"<Error><Code>{code}</Code><Message>sorry</Message></Error>")

    return answer


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "InternalError"), (503, "SlowDown"), (503, "ServiceUnavailable"), (400, "RequestTimeout"),
        (403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (404, "NoSuchBucket"), (501, "NotImplemented"),
    ],
)  # fmt: skip
async def test_a_refusal_that_is_not_about_the_object_is_transient(status: int, code: str) -> None:
    """The client does not try it again: that is for the lane."""
    asked: list[str] = []
    async with s3_that(error(status, code, asked)) as blobs:
        with pytest.raises(BlobsUnavailable, match=rf"cannot read {NAME} in bucket gifts of http.*{code}"):
            await blobs.get(NAME)
        with pytest.raises(BlobsUnavailable, match=rf"cannot write {NAME} in bucket gifts"):
            await blobs.put(NAME, b"x", "image/png")
    assert asked == ["GET", "PUT"]


REFUSALS = {
    "ExpiredToken": (400, "have expired: give new ones"),
    "AccessDenied": (403, "s3:GetObject, s3:PutObject and s3:ListBucket"),
    "InvalidAccessKeyId": (403, "STEADFAUST_S3_ACCESS_KEY"),
    "SignatureDoesNotMatch": (403, "STEADFAUST_S3_SECRET_KEY"),
    "RequestTimeTooSkewed": (403, "set the clock"),
    "NoSuchBucket": (404, "STEADFAUST_S3_BUCKET"),
    "PermanentRedirect": (301, "STEADFAUST_S3_REGION"),
    "AuthorizationHeaderMalformed": (400, "STEADFAUST_S3_REGION"),
    "KMS.DisabledException": (400, "the KMS key"),
    "KMS.NotFoundException": (400, "the KMS key"),
    "QuotaExceeded": (403, "the store is full"),
}


async def each_request(blobs: Blobs) -> list[BaseException | None]:
    """One of each kind; what it raises."""

    async def scan() -> None:
        async for _ in blobs.scan("events/"):
            pass

    asked = (blobs.put(NAME, b"x", "image/png"), blobs.get(NAME), blobs.delete([NAME]), scan())
    found = await asyncio.gather(*asked, return_exceptions=True)
    return [each if isinstance(each, BaseException) else None for each in found]


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_refusal_names_bucket_code_and_remedy(code: str) -> None:
    status, advice = REFUSALS[code]
    async with s3_that(error(status, code, [])) as blobs:
        for raised in await each_request(blobs):
            assert isinstance(raised, BlobsUnavailable)
            for text in (str(raised), raised.cause):
                assert "bucket gifts of http" in text
                assert code in text
                assert advice in text
            assert NAME not in raised.cause  # it is the same for each object


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_refused_head_says_what_may_be_wrong(status: int) -> None:
    """The answer to HEAD has no body, and so no code."""
    async with s3_that(error(status, "ExpiredToken", [])) as blobs:
        with pytest.raises(BlobsUnavailable, match=rf"{status}.*the credentials, their rights or the clock"):
            await blobs.head(NAME)


@pytest.mark.parametrize("there", [True, False])
async def test_a_missing_bucket_is_no_missing_object(there: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if there and request.path == "/gifts" else 404)

    async with s3_that(answer) as blobs:
        if there:
            assert await blobs.head(NAME) is None
            return
        with pytest.raises(BlobsUnavailable, match=r"NoSuchBucket.*STEADFAUST_S3_BUCKET"):
            await blobs.head(NAME)


async def test_an_archived_object_is_an_error_of_its_own() -> None:
    async with s3_that(error(403, "InvalidObjectState", [])) as blobs:
        with pytest.raises(BlobArchived, match=f"s3://gifts/{NAME} is archived .*restore it .*then replay"):
            await blobs.get(NAME)


async def test_an_object_that_is_not_there_is_permanent() -> None:
    async with s3_that(error(404, "NoSuchKey", [])) as blobs:
        with pytest.raises(BlobMissing, match=f"s3://gifts/{NAME} is not there"):
            await blobs.get(NAME)


async def test_a_body_that_breaks_off_is_transient() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async with s3_that(answer) as blobs:
        with pytest.raises(BlobsUnavailable, match=f"cannot read {NAME}"):
            await blobs.get(NAME)


async def test_a_body_that_trickles_is_given_up() -> None:
    calm = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        trickles = not calm.is_set()
        response = web.StreamResponse(headers={"Content-Length": "1000000"} if trickles else {})
        await response.prepare(request)
        assert request.transport is not None
        while not calm.is_set() and not request.transport.is_closing():
            await response.write(b"." * 1000)
            await asyncio.sleep(0.05)
        if trickles:
            request.transport.close()
        else:
            await response.write(b"whole")
        return response

    async with s3_that(answer, timeout=0.5, threads=1) as blobs:
        with pytest.raises(BlobsUnavailable, match=r"no answer within 0.5 s"):
            await blobs.get(NAME)
        calm.set()

        await eventually_async(lambda: is_whole(blobs), "the thread is free again")


async def is_whole(blobs: Blobs) -> bool:
    with suppress(BlobsUnavailable):
        return await blobs.get(NAME) == b"whole"
    return False


class Trickling:
    """A server that sends a byte now and then, in its headers or behind them, or that reads nothing."""

    def __init__(self, head: bytes = b"") -> None:
        self.head = head
        self.calm = False
        self.ended = asyncio.Event()
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            if self.head == b"read nothing":
                await self.ended.wait()
                return
            await reader.readuntil(b"\r\n\r\n")
            if self.calm:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nwhole")
                await writer.drain()
                return
            writer.write(self.head or b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.02)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def trickling(head: bytes = b"", **options: Any) -> AsyncIterator[tuple[Trickling, S3Blobs]]:
    world = Trickling(head)
    server = await asyncio.start_server(world.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    blobs = S3Blobs(replace(S3Options("gifts", url, "key", "secret", timeout=0.5, threads=1), **options))
    yield world, blobs
    await blobs.close()
    world.ended.set()
    server.close()
    await eventually_async(lambda: world.open == 0, "no connection is left")


BODY = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: 1000000\r\n\r\n"
REQUESTS: dict[str, Callable[[S3Blobs], Awaitable[Any]]] = {
    "get": lambda blobs: blobs.get(NAME),
    "put": lambda blobs: blobs.put(NAME, b"x", "image/png"),
    "head": lambda blobs: blobs.head(NAME),
    "delete": lambda blobs: blobs.delete([NAME]),
    "scan": lambda blobs: anext(aiter(blobs.scan("events/"))),
}


@pytest.mark.parametrize("head", [b"", BODY], ids=["headers", "body"])
@pytest.mark.parametrize("request_", REQUESTS)
async def test_a_request_given_up_frees_its_thread(request_: str, head: bytes) -> None:
    async with trickling(head) as (world, blobs):
        if request_ in ("head", "put") and head:
            return  # these answers have no body
        with pytest.raises(BlobsUnavailable, match=r"no answer within 0.5 s"):
            await REQUESTS[request_](blobs)
        world.calm = True
        await eventually_async(lambda: is_whole(blobs), "the only thread is free again")


async def test_an_upload_that_nobody_reads_frees_its_thread() -> None:
    async with trickling(b"read nothing", read_timeout=600.0, connect_timeout=600.0) as (world, blobs):
        with pytest.raises(BlobsUnavailable, match=r"cannot write .*no answer within 0.5 s"):
            await blobs.put(NAME, b"x" * (16 << 20), "image/png")
        world.head, world.calm = b"", True
        await eventually_async(lambda: is_whole(blobs), "the thread is free again")


async def test_a_request_whose_caller_left_frees_its_thread() -> None:
    async with trickling(BODY, timeout=600.0) as (world, blobs):
        reading = asyncio.create_task(blobs.get(NAME))
        await eventually_async(lambda: world.open == 1, "the request is under way")
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        world.calm = True
        async with asyncio.timeout(BOUND):
            assert await blobs.get(NAME) == b"whole"


async def test_closing_ends_what_is_under_way() -> None:
    async with trickling(BODY, timeout=600.0) as (world, blobs):
        reading = asyncio.create_task(blobs.get(NAME))
        await eventually_async(lambda: world.open == 1, "the request is under way")
        await blobs.close()
        async with asyncio.timeout(BOUND):
            with pytest.raises(BlobsUnavailable):
                await reading


async def test_a_deletion_refused_in_part_is_not_done() -> None:
    def result(code: str) -> Answer:
        async def answer(_request: web.Request) -> web.StreamResponse:
            failed = f"<Error><Key>{NAME}</Key><Code>{code}</Code><Message>sorry</Message></Error>"
            return web.Response(text=f"<DeleteResult>{failed}</DeleteResult>")

        return answer

    async with s3_that(result("AccessDenied")) as blobs:
        with pytest.raises(BlobsUnavailable, match=r"cannot delete 2 objects .*AccessDenied"):
            await blobs.delete([NAME, "events/order/2-b"])
    async with s3_that(result("NoSuchKey")) as blobs:
        await blobs.delete([NAME])


async def test_a_name_that_leads_nowhere_is_transient() -> None:
    blobs = S3Blobs(S3Options("gifts", "http://nowhere.invalid:1", "key", "secret"))
    with pytest.raises(BlobsUnavailable):
        await blobs.get(NAME)
    await blobs.close()
