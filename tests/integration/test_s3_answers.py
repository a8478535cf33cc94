"""What the S3 adapter makes of answers that S3Proxy does not give when it is asked to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from streams.errors import BlobMissing, BlobsUnavailable
from streams.s3 import S3Blobs, S3Options
from tests.waiting import eventually_async

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

        async def is_whole() -> bool:
            with suppress(BlobsUnavailable):
                return await blobs.get(NAME) == b"whole"
            return False

        await eventually_async(is_whole, "the thread is free again")


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
