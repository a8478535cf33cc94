"""Dead letters as pages: of all lanes together, with forms that act on them."""

from __future__ import annotations

import asyncio
import json
import re
from html import unescape
from typing import Any

import pytest
from web_workers import NOW, Browser, FakeWorker, ParcelSeen, make_application

from streams.model.operations import Done, HandlerDone, decode_operation, encode_done, encode_handler_done
from streams.testing.log import FakeRecord
from streams.web.desk import differences

LETTERS = "/dead-letters"
REASON = {"who": "ann", "why": "mended"}
HOSTILE = "</textarea><script>alert(1)</script>"


@pytest.fixture
async def two():
    """Two workers that share the lanes, and a browser of the first."""
    app = make_application(edit_dead_letters=True)
    first, second = FakeWorker.with_lanes(0, 1, app=app), FakeWorker.with_lanes(2, 3, app=app)
    async with Browser.of(first) as one, Browser.of(second) as other:
        first.url, second.url = one.url, other.url
        for worker in (first, second):
            worker.owns({0: first.url, 1: first.url, 2: second.url, 3: second.url})
        yield first, second, one


def put(key: str, first: FakeWorker, second: FakeWorker, **options: Any) -> str:
    return next(each for each in (first, second) if each.lane(key) in each.lanes).put_letter(key, **options)


async def send(browser: Browser, path: str, **fields: str) -> tuple[int, str, str]:
    """Send a form as the page at `path` would: status, where it leads, what it shows."""
    await browser.page(LETTERS)
    csrf = next(each.value for each in browser.cookies if each.key == "csrf")
    return await send_raw(browser, path, csrf=csrf, **fields)


async def send_raw(browser: Browser, path: str, headers: Any = None, **fields: str) -> tuple[int, str, str]:
    async with browser.post(path, data=fields, headers=headers, allow_redirects=False) as response:
        return response.status, response.headers.get("Location", ""), await response.text()


async def test_groups_and_letters_of_all_workers_are_on_one_page(two):
    first, second, browser = two
    keys = [f"k{n}" for n in range(12)]
    ids = {key: put(key, first, second) for key in keys}
    put("other", first, second, why="stamp missing", error_type="NoStamp")
    assert {first.lane(key) in first.lanes for key in keys} == {True, False}
    _, page = await browser.page(LETTERS)
    assert re.search(r">12</a><td>post.note<td class=\"bad\">ValueError", page)
    assert "NoStamp" in page
    _, page = await browser.page(f"{LETTERS}/letters", params={"error_type": "ValueError"})
    assert all(f'href="/dead-letters/{ids[key]}"' in page for key in keys)
    assert "NoStamp" not in page
    seen, path = [], f"{LETTERS}/letters?limit=5"
    while path:
        _, page = await browser.page(path)
        seen += re.findall(r"/search\?q=(\w+)", page)
        link = re.search(r'href="([^"]+)">Next page', page)
        path = unescape(link[1]) if link else ""
    assert sorted(seen) == sorted([*keys, "other"])


async def test_no_dead_letters_are_no_error(two):
    _, _, browser = two
    assert "No dead letters" in (await browser.page(LETTERS))[1]
    assert "None here" in (await browser.page(f"{LETTERS}/letters"))[1]
    assert "None since" in (await browser.page(f"{LETTERS}/jobs"))[1]


async def test_the_letters_of_a_lane_that_does_not_answer_are_missing_and_that_is_said(two):
    first, second, browser = two
    put("k1", first, second)
    first.owns({0: first.url, 1: first.url})
    _, page = await browser.page(LETTERS)
    assert "The dead letters of lane 2 are missing here" in page


async def test_a_letter_is_shown_in_full_and_replayed_by_a_form(two):
    first, second, browser = two
    ident = put("k1", first, second, why="no stamp")
    _, page = await browser.page(f"{LETTERS}/{ident}")
    for expected in ("ValueError: no stamp", "post.note", "ce_id", "Nothing yet", "&#34;k1&#34;"):
        assert expected in page
    status, there, _ = await send(browser, f"{LETTERS}/{ident}", operation="replay", key="k1", **REASON)
    assert (status, there) == (303, f"/dead-letters/{ident}?asked=replay&key=k1")
    ((to, message),) = first.asked
    operation = decode_operation(message.value)
    assert (operation.letter, operation.who, operation.why) == (ident, "ann", "mended")
    assert to.partition == first.partition("k1")
    assert "replay is asked for" in (await browser.page(there))[1]


async def test_a_letter_that_is_gone_after_a_replay_is_settled_and_another_one_is_not_found(two):
    first, second, browser = two
    ident = put("k1", first, second)
    owner = next(each for each in (first, second) if each.lane("k1") in each.lanes)
    store = owner.lanes[owner.lane("k1")].store
    store.drop("dead_letters")
    status, page = await browser.page(f"{LETTERS}/{ident}?asked=replay&key=k1")
    assert status == 200
    assert "settled" in page
    assert (await browser.page(f"{LETTERS}/{ident}"))[0] == 404


async def test_an_edit_shows_what_would_change_and_is_sent_once_it_is_confirmed(two):
    first, second, browser = two
    ident = put("k1", first, second)
    path = f"{LETTERS}/{ident}/edit"
    assert '"id": "k1"' in unescape((await browser.page(path))[1])
    status, _, page = await send(browser, path, message="{")
    assert (status, "This is no JSON object" in page) == (200, True)
    status, _, page = await send(browser, path, message='{"id": "k2"}')
    assert status == 200
    assert re.search(r'class="bad">-   "id": "k1"', unescape(page))
    assert re.search(r'class="good">\+   "id": "k2"', unescape(page))
    assert first.asked == []
    status, there, _ = await send(browser, path, message='{"id": "k2"}', confirmed="1", **REASON)
    assert (status, there) == (303, f"/dead-letters/{ident}?asked=edit&key=k1")
    ((_, message),) = first.asked
    assert decode_operation(message.value).value == b'{"id":"k2"}'


async def test_a_message_that_nobody_can_read_is_written_anew(two):
    first, second, browser = two
    ident = put("k1", first, second, value=b"{oops")
    path = f"{LETTERS}/{ident}/edit"
    _, page = await browser.page(path)
    assert "Write the whole message" in page
    _, _, page = await send(browser, path, message='{"id": "k1"}')
    assert re.search(r'class="good">\+   "id": "k1"', unescape(page))
    status, _, _ = await send(browser, path, message='{"id": "k1"}', confirmed="1", **REASON)
    assert status == 303
    ((_, message),) = first.asked
    assert decode_operation(message.value).value == b'{"id":"k1"}'


async def test_many_are_counted_before_anything_is_done_with_them(two):
    first, second, browser = two
    for n in range(9):
        put(f"k{n}", first, second)
    status, there, _ = await send(
        browser, f"{LETTERS}/letters", operation="discard", error_type="ValueError", **REASON
    )
    assert status == 303
    page = await ended(browser, there)
    assert first.asked == []
    assert "Discard 9 letters" in page
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    status, there, _ = await send_raw(browser, f"{LETTERS}/letters", **hidden, confirmed="1")
    assert status == 303
    assert "9 asked for" in await ended(browser, there)
    assert len(first.asked) == 9
    assert "ann: mended" in (await browser.page(there))[1]
    assert (await browser.page(f"{LETTERS}/jobs"))[1].count("<td>done") == 2


async def ended(browser: Browser, path: str) -> str:
    async with asyncio.timeout(10):
        while "<b>running</b>" in (page := (await browser.page(path))[1]):
            continue
    return page


@pytest.mark.parametrize("origin", [None, "http://shop.example", "http://127.0.0.1:1", "null"])
async def test_a_form_of_another_page_does_nothing(two, origin):
    first, second, browser = two
    ident = put("k1", first, second)
    fields = {"operation": "discard", **REASON}
    headers = {"Origin": origin} if origin else {}
    await browser.page(LETTERS)
    csrf = next(each.value for each in browser.cookies if each.key == "csrf")
    for guess in ("", "guess") if origin is None else (csrf,):
        status, _, page = await send_raw(browser, f"{LETTERS}/{ident}", headers, **fields, csrf=guess)
        assert status == 403
        assert "foreign form" in page
    async with browser.post(f"{LETTERS}/{ident}", json=fields) as response:
        assert response.status == 400
    assert first.asked == []


async def test_a_form_without_a_reason_or_with_an_unknown_operation_is_refused(two):
    first, second, browser = two
    path = f"{LETTERS}/{put('k1', first, second)}"
    assert (await send(browser, path, operation="replay", who="ann", why=" "))[0] == 400
    assert (await send(browser, path, operation="drop", **REASON))[0] == 400
    assert (await send(browser, f"{LETTERS}/letters", operation="replay", **REASON))[0] == 400
    assert first.asked == []


async def test_what_a_letter_says_stays_text(two):
    first, second, browser = two
    ident = put(HOSTILE, first, second, why=HOSTILE, error_type=HOSTILE, message_type=HOSTILE, trace=HOSTILE)
    for path in (LETTERS, f"{LETTERS}/letters", f"{LETTERS}/{ident}"):
        _, page = await browser.page(path)
        assert "<script>" not in page
        assert "&lt;script&gt;" in page
    _, _, page = await send(browser, f"{LETTERS}/{ident}/edit", message=json.dumps({"id": HOSTILE}))
    assert "<script>" not in page
    assert page.count("</textarea>") == 1


def test_differences_are_told_line_by_line():
    lines = differences("{\n  a\n  b\n}", "{\n  a\n  c\n}")
    assert [tuple(line) for line in lines] == [
        (" ", "{"),
        (" ", "  a"),
        ("-", "  b"),
        ("+", "  c"),
        (" ", "}"),
    ]


# -- the log of operations --------------------------------------------------------------------------------


def logged(worker: FakeWorker, offset: int, value: bytes, key: str = "") -> None:
    topic = worker.application.layout.operations_log
    worker.records.append(FakeRecord(topic, 0, offset, int(NOW * 1000) + offset, key.encode(), value, ()))


def about_letter(ident: str, why: str) -> bytes:
    done = Done(
        operation="discard", id="o1", letter=ident, who="ann", why=why, asked_at="a", at="b", result="done",
        state="discarded", topic=ParcelSeen.TOPIC, partition=0, offset=1, key="k1", handler="post.note",
        message_id="m1", job="job-1",
    )  # fmt: skip
    return encode_done(done)


async def test_the_log_of_operations_tells_who_did_what_the_newest_first(two):
    first, _, browser = two
    assert "Nothing yet" in (await browser.page(f"{LETTERS}/audit"))[1]
    logged(first, 0, about_letter("L1", "too old"), "L1")
    logged(first, 1, about_letter("L2", HOSTILE), "L2")
    paused = HandlerDone(
        operation="pause", id="o2", handler="post.note", partition=3, who="bob", why="it burns",
        asked_at="a", at="b", result="paused", state="paused",
    )  # fmt: skip
    logged(first, 2, encode_handler_done(paused))
    logged(first, 3, b"somebody else's")
    _, page = await browser.page(f"{LETTERS}/audit?limit=3")
    assert "is no entry of the log" in page
    assert page.index("it burns") < page.index("&lt;script&gt;")
    assert "<script>alert" not in page
    assert "too old" not in page
    older = re.search(r'rel="prev" href="([^"]+)"', page)
    _, page = await browser.page(unescape(older[1]))
    assert "too old" in page
    assert "it burns" not in page


async def test_what_all_partitions_did_of_one_operation_is_told_once_for_each_result(two):
    first, _, browser = two
    for partition, result in ((3, "paused"), (1, "paused"), (2, "already"), (1, "paused")):
        done = HandlerDone(
            operation="pause", id="o2", handler="post.note", partition=partition, who="bob", why="it burns",
            asked_at="a", at="b", result=result, state="paused",
        )  # fmt: skip
        logged(first, len(first.records), encode_handler_done(done))
    _, answer = await browser.json("/api/dead-letters/audit")
    told = [(each["logged"]["result"], each["partitions"]) for each in answer["entries"]]
    assert told == [("paused", [1, 3]), ("already", [2])]
    _, page = await browser.page(f"{LETTERS}/audit")
    assert "partitions 1, 3" in page
    assert "partition 2" in page


async def test_what_was_done_about_one_letter_is_told_also_when_it_is_gone(two):
    first, _, browser = two
    logged(first, 0, about_letter("L1", "too old"), "L1")
    logged(first, 1, about_letter("L2", "another"), "L2")
    _, answer = await browser.json("/api/dead-letters/audit?letter=L1")
    assert [each["logged"]["why"] for each in answer["entries"]] == ["too old"]
