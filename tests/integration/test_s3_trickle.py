"""A real object store whose answers trickle for a while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from streams.errors import BlobsUnavailable
from streams.local import Stack
from streams.s3 import S3Blobs, S3Options
from streams.settings import LOCAL_BUCKET, LOCAL_KEYS
from tests.waiting import eventually_async

#: Eight of these do not come within the bound of a request at the trickle's pace, or one of them.
LARGE = b"." * (1 << 20)


class SlowLink:
    """A proxy before the store, whose answers pass at once, or by a few bytes each time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_slow = False
        self.slow_ones = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ways = [self._pass_on(reader, up_writer), self._pass_on(up_reader, writer, answers=True)]
        with suppress(ConnectionError):
            await asyncio.gather(*ways)

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        is_slow = False
        try:
            while data := await source.read(50 if is_slow else 1 << 16):
                if answers and self.is_slow and not is_slow:  # this connection stays so
                    is_slow = True
                    self.slow_ones += 1
                for start in range(0, len(data), 50) if is_slow else (0,):
                    to.write(data[start : start + 50] if is_slow else data)
                    await to.drain()
                    if is_slow:
                        await asyncio.sleep(0.05)
        finally:
            self.slow_ones -= is_slow
            to.close()


@asynccontextmanager
async def slow_link(s3: Stack, **options: float) -> AsyncIterator[tuple[SlowLink, S3Blobs]]:
    link = SlowLink(urlsplit(s3.url("s3")).port or 80)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    blobs = S3Blobs(replace(S3Options(LOCAL_BUCKET, url, *LOCAL_KEYS), **options))
    yield link, blobs
    await blobs.close()
    server.close()


@pytest.mark.promise("object-store-refusals")
async def test_a_store_that_trickled_is_read_once_well(s3: Stack) -> None:
    async with slow_link(s3) as (_, blobs):
        await blobs.put("events/slow/1", LARGE, "image/png")
    async with slow_link(s3, timeout=1.0) as (link, blobs):
        link.is_slow = True
        reads = [blobs.get("events/slow/1") for _ in range(8)]
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(each) for each in found] == [BlobsUnavailable] * 8
        link.is_slow = False
        await eventually_async(lambda: link.slow_ones == 0, "the connections that trickled are closed")

        async def is_read() -> bool:  # within a second, of which a busy machine may need more
            with suppress(BlobsUnavailable):
                return await blobs.get("events/slow/1") == LARGE
            return False

        await eventually_async(is_read, "the object is read")
