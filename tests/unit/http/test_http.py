"""The server of an HTTP interface, and its health."""

import asyncio
import os
from typing import Annotated

import httpx
import pytest
from litestar import Litestar, get
from litestar.params import QueryParameter

from streams.errors import TransientError
from streams.host.slots import take_port
from streams.http import Check, Health, HttpServer
from streams.system.listening import CannotListen

pytestmark = pytest.mark.usefixtures("quiet")


@get("/gifts")
async def gifts(most: Annotated[int, QueryParameter(ge=1)]) -> int:
    return most


async def test_the_worst_finding_is_the_health_of_the_whole() -> None:
    async def fine() -> str:
        return ""

    async def slow() -> str:
        return "1200 requests wait"

    async def gone() -> str:
        raise TransientError("nobody answers")

    assert (await Health([Check("a", fine)]).report()).status == "OK"
    degraded = await Health([Check("a", fine), Check("b", slow, "DEGRADED")]).report()
    assert (degraded.status, degraded.reasons) == ("DEGRADED", ("b: 1200 requests wait",))
    down = await Health([Check("b", slow, "DEGRADED"), Check("c", gone)]).report()
    assert (down.status, len(down.reasons)) == ("DOWN", 2)


async def test_a_check_that_does_not_answer_is_a_reason() -> None:
    async def hangs() -> str:
        await asyncio.Event().wait()
        return ""

    report = await Health([Check("disk", hangs)], patience=0.01).report()
    assert report.status == "DOWN"
    assert report.reasons == ("disk: no answer within 0.01 s",)


async def test_a_server_serves_on_a_free_port_alone() -> None:
    app = Litestar([gifts], logging_config=None)
    async with HttpServer(app) as server, httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/gifts?most=7")).text == "7"
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(CannotListen, match=f"{port}: process {os.getpid()} .* does. End it"):
            async with HttpServer(app, port=port):
                pass
    (bound,) = take_port(port)
    async with HttpServer(app, bound=bound) as server, httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/gifts?most=8")).text == "8"


async def test_a_server_started_again_has_its_port_at_once() -> None:
    app = Litestar([gifts], logging_config=None)
    (bound,) = take_port(0)
    port = bound.getsockname()[1]
    async with httpx.AsyncClient() as client:
        async with HttpServer(app, bound=bound):
            await client.get(f"http://127.0.0.1:{port}/gifts?most=7")
        (again,) = take_port(port)  # the server has closed that connection first: the system keeps its end
    assert again.getsockname()[1] == port
    again.close()
