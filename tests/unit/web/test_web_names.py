"""Any key and any id can be looked at: the empty one, and those that proxies change in a path."""

import asyncio
import html
import json
import posixpath
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner
from web_workers import NOW
from yarl import URL

from streams.cli.main import app
from streams.control.base.asked import address_of, as_asked, asked_text

pytestmark = pytest.mark.promise("any-key")

HOSTILE = [
    *("a/b", "a%2Fb", "100%", "a?b", "a#b", "..", ".", "a//b", " a ", "ä"),
    *("a\0b", "a;b", "a\\b", "-", '"', '""'),
]


@asynccontextmanager
async def decoding_proxy(url: str) -> AsyncIterator[str]:
    """What nginx does with a path before an upstream with a path of its own: it decodes it, merges slashes,
    resolves dots, refuses NUL, and quotes what is left. The query stays as it is.
    """

    async def passed_on(request: web.Request) -> web.Response:
        raw, _, query = request.raw_path.partition("?")
        decoded = unquote_to_bytes(raw)
        if b"\0" in decoded:
            return web.Response(status=400)
        tidy = posixpath.normpath(re.sub(b"/+", b"/", decoded))
        there = URL(f"{url}{quote(tidy)}{'?' if query else ''}{query}", encoded=True)
        body = await request.read()
        kept = {name: text for name, text in request.headers.items() if name != "Host"}
        async with session.request(
            request.method, there, data=body, headers=kept, allow_redirects=False
        ) as answer:
            kind = answer.headers.get("Content-Type", "text/plain").partition(";")[0]
            return web.Response(status=answer.status, body=await answer.read(), content_type=kind)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", passed_on)
    async with ClientSession(auto_decompress=True) as session, TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize("text", [*HOSTILE, "", "plain", "a b"])
def test_what_is_asked_for_comes_back(text: str) -> None:
    assert asked_text(as_asked(text)) == text
    assert as_asked("plain") == "plain"


@pytest.mark.parametrize("text", ["plain", "order:17", "a.b~c_d-e"])
def test_a_plain_name_stays_in_the_path(text: str) -> None:
    assert address_of("/sagas", "saga", text) == f"/sagas/{quote(text, safe='')}"


async def get(url: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(URL(url, encoded=True)) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("key", HOSTILE)
async def test_a_saga_is_found_behind_a_decoding_proxy(browser: Any, key: str) -> None:
    ident = f"order:{key}"
    async with decoding_proxy(browser.url) as url:
        status, text = await get(url + address_of("/api/sagas", "saga", ident))
        operation = address_of("/api/sagas", "saga", ident, "/operations")
        async with (
            ClientSession() as session,
            session.post(
                URL(url + operation, encoded=True), json={"operation": "retry", "who": "ann", "why": "asked"}
            ) as answer,
        ):
            asked = await answer.json()
    problem = json.loads(text)
    assert status == 404
    assert problem["error"] == asked["error"] == "no_saga"  # and not `not_found`
    assert repr(ident) in problem["detail"]


async def test_a_name_in_the_query_is_that_of_the_path(browser: Any) -> None:
    in_path = await browser.json("/api/sagas/order%3Aa%2Fb")
    in_query = await browser.json("/api/sagas/-?saga=order%3Aa%2Fb")
    assert in_path == in_query
    assert "order:-" in (await browser.json("/api/sagas/order%3A-"))[1]["detail"]


async def test_rows_of_the_empty_key_are_looked_up(browser: Any, worker: Any) -> None:
    worker.put("", note="of the empty key")
    _, found = await browser.json("/api/tables/parcels/rows?key=")
    assert (found["key"], len(found["rows"])) == ("", 1)
    page = await browser.shows("/tables/parcels")
    assert "rows?key=" in page
    assert ">&#34;&#34;</a>" in page  # a link needs text
    await browser.shows("/tables/parcels/rows?key=", "of the empty key")
    assert await browser.refusal("/api/tables/parcels/rows") == (400, "no_key")


async def test_the_empty_key_is_traced(browser: Any, worker: Any) -> None:
    worker.put("", note="of the empty key")
    worker.wait("", since=NOW)
    worker.put_letter("")
    _, found = await browser.json("/api/search?q=%22%22")
    assert (found["key"], len(found["held"]["waiting"])) == ("", 1)
    assert found["held"]["letters"]
    page = html.unescape(await browser.shows("/waiting"))
    assert "/search?q=%22%22" in page
    await browser.shows("/search?q=%22%22")
    assert await browser.refusal("/api/search?q=") == (400, "no_key")


@pytest.mark.parametrize("key", ["", " a ", '"'])
async def test_commands_look_at_such_keys(browser: Any, worker: Any, key: str) -> None:
    worker.put(key, note="found")
    worker.wait(key, since=NOW)
    for words in (["trace", key, "--json"], ["waiting", "--key", key]):
        ran = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--worker", browser.url])
        assert ran.exit_code == 0, ran.output
    assert "1 message" in ran.stdout or (key or '""') in ran.stdout
