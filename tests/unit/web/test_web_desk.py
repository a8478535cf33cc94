"""Dead letters as pages: of all lanes together, with forms that act on them."""

import json
import re
from html import unescape
from typing import Any

import pytest
from web_workers import NOW, Browser, FakeWorker, ParcelSeen, make_application, owner_of

from streams.console.letters import differences
from streams.engine.staging.keys import prefix_of
from streams.engine.waiting.dead_letters.row import LetterState
from streams.engine.waiting.queue import Reason
from streams.model.operations import Done, HandlerDone, HandlerPause, PauseState, encode_done
from streams.testing.log import FakeRecord

LETTERS = "/dead-letters"
AUDIT = f"{LETTERS}/audit"
REASON = {"who": "ann", "why": "mended"}
HOSTILE = "</textarea><script>alert(1)</script>"


@pytest.fixture
def app():
    return make_application(edit_dead_letters=True)


async def test_groups_and_letters_of_all_workers_are_on_one_page(first, one, put):
    keys = [f"k{n}" for n in range(12)]
    ids = {key: put(key) for key in keys}
    put("other", why="stamp missing", error_type="NoStamp")
    assert {first.lane(key) in first.lanes for key in keys} == {True, False}
    _, page = await one.page(LETTERS)
    assert re.search(r"<b>12</b></a>.*post.note gave up.*ValueError", page)
    assert "NoStamp" in page
    assert re.search(r'href="/dead-letters/letters\?handler=post.note&amp;[^"]+#all">Replay all 12…<', page)
    _, page = await one.page(f"{LETTERS}/letters")
    assert re.findall(r">post.note: (\w+) <span>(\d+)<", page) == [("NoStamp", "1"), ("ValueError", "12")]
    _, page = await one.page(f"{LETTERS}/letters", params={"error_type": "ValueError"})
    assert all(f'href="/dead-letters/{ids[key]}"' in page for key in keys)
    assert "NoStamp" not in page
    seen, path = [], f"{LETTERS}/letters?limit=5"
    while path:
        _, page = await one.page(path)
        seen += re.findall(r"/search\?q=(\w+)", page)
        link = re.search(r'href="([^"]+)">Next page', page)
        path = unescape(link[1]) if link else ""
    assert sorted(seen) == sorted([*keys, "other"])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "No dead letters"),
        ("/letters", "None here"),
        ("/jobs", "No jobs since"),
        ("/audit", "No operations yet"),
    ],
)
async def test_that_there_is_nothing_is_no_error(one, path, said):
    assert said in (await one.page(LETTERS + path))[1]


async def test_letters_of_a_silent_lane_are_said_to_miss(first, one, put):
    put("k1")
    first.owns({0: first.url, 1: first.url})
    await one.shows(LETTERS, "The dead letters of lane 2 are missing here")


async def test_a_letter_is_shown_and_replayed_by_a_form(first, one, put):
    ident = put("k1", why="no stamp")
    said = ("ValueError: no stamp", "post.note", "ce_id", "Nothing yet", "&#34;k1&#34;")
    await one.shows(f"{LETTERS}/{ident}", *said)
    status, there, _ = await one.send(f"{LETTERS}/{ident}", operation="replay", key="k1", **REASON)
    (operation,) = first.operations
    assert (status, there) == (303, f"/dead-letters/{ident}?asked=replay&key=k1&job={operation.job}")
    assert (operation.letter, operation.who, operation.why) == (ident, "ann", "mended")
    assert first.asked[0][0].partition == first.partition("k1")
    await one.shows(there, "replay requested", "Replay sent;</b> waiting for post.note.")


BUTTON = 'name="operation" value="{}" disabled'


@pytest.mark.parametrize("operation", ["replay", "discard"])
async def test_a_letter_takes_no_second_operation_before_the_first(both, one, put, operation):
    ident = put("k1")
    _, there, _ = await one.send(f"{LETTERS}/{ident}", operation=operation, key="k1", **REASON)
    page = await one.shows(there, f"{operation} requested", *map(BUTTON.format, ("replay", "discard")))
    assert 'hx-select-oob="#act"' in page
    owner = owner_of("k1", *both)
    owner.settle(both[0].operations[0], b"refused: it is parked")
    await one.shows(there, "it is parked", hides=("disabled", "hx-select-oob", f"{operation} requested"))
    await one.shows(f"{LETTERS}/{ident}", "Discard", hides=("disabled", "requested"))


async def test_a_letter_that_is_gone_after_a_replay_is_settled(both, one, put):
    ident = put("k1")
    owner = owner_of("k1", *both)
    owner.lanes[owner.lane("k1")].store.drop("dead_letters")
    await one.shows(f"{LETTERS}/{ident}?asked=replay&key=k1", "settled")
    assert (await one.page(f"{LETTERS}/{ident}"))[0] == 404


async def test_an_edit_is_shown_and_sent_once_it_is_confirmed(first, one, put):
    ident = put("k1")
    path = f"{LETTERS}/{ident}/edit"
    assert '"id": "k1"' in unescape((await one.page(path))[1])
    status, _, page = await one.send(path, message="{")
    assert (status, "This is not a JSON object" in page) == (200, True)
    status, _, page = await one.send(path, message='{"id": "k2"}')
    assert status == 200
    assert '<li class="del"><span>  "id": "k1"' in unescape(page)
    assert '<li class="add"><span>  "id": "k2"' in unescape(page)
    assert first.asked == []
    status, there, _ = await one.send(path, message='{"id": "k2"}', confirmed="1", **REASON)
    (operation,) = first.operations
    assert (status, there) == (303, f"/dead-letters/{ident}?asked=edit&key=k1&job={operation.job}")
    assert operation.value == b'{"id":"k2"}'


@pytest.mark.parametrize(
    ("state", "note", "expected"),
    [
        ("gone", b"replaying", "The replay worked: post.note handled ParcelSeen of k1"),
        ("dead", b"replaying", 'failed again</span> <b>replay</b>: <span class="red">ValueError: no stamp'),
        ("replaying", b"replaying", "Its replay waits: paused by ann"),
        ("parked", b"refused: it is parked", 'refused</span> <b>replay</b>: <span class="red">it is parked'),
    ],
)
async def test_a_replay_ends_in_a_result(both, one, put, state, note, expected):
    owner = owner_of("k1", *both)
    ident = put("k1", why="no stamp", state=LetterState("dead" if state == "gone" else state), replays=1)
    await one.send(f"{LETTERS}/{ident}", operation="replay", key="k1", **REASON)
    (operation,) = both[0].operations
    owner.settle(operation, note)
    if state == "gone":
        owner.lanes[owner.lane("k1")].store.drop("dead_letters")
    if state == "replaying":
        owner.wait("k1", reason=Reason.REPLAY)
        gate = owner.gate(owner.lane("k1"))
        gate.set_pause(prefix_of(owner.partition("k1")), HandlerPause(PauseState.PAUSED, "ann", "strike", 0))
    page = await one.shows(f"{LETTERS}/{ident}?asked=replay&key=k1&job={operation.job}", expected)
    assert ("1 of 3" in page) == (state != "gone")
    counts = {"gone": "1 handled", "dead": "1 failed again", "replaying": "1 wait", "parked": "1 refused"}
    await one.shows(f"{LETTERS}/jobs/{operation.job}", counts[state])


async def test_an_edit_may_change_fields_alone(first, one, put):
    path = f"{LETTERS}/{put('k1')}/edit"
    page = await one.shows(path, 'name="field:id" value="k1"')
    message = unescape(re.search(r'name="message" value="([^"]*)"', page)[1])
    _, _, page = await one.send(path, message=message, **{"field:id": "k9"})
    assert '<li class="add"><span>  "id": "k9"' in unescape(page)
    _, _, page = await one.send(path, message='{"id": "k1", "size": 2}', **{"field:size": "two"})
    assert "size is 'two': it takes a value of type integer" in unescape(page)


async def test_a_message_that_nobody_can_read_is_written_anew(first, one, put):
    path = f"{LETTERS}/{put('k1', value=b'{oops')}/edit"
    await one.shows(path, "Type in the whole message")
    _, _, page = await one.send(path, message='{"id": "k1"}')
    assert '<li class="add"><span>  "id": "k1"' in unescape(page)
    assert (await one.send(path, message='{"id": "k1"}', confirmed="1", **REASON))[0] == 303
    assert [each.value for each in first.operations] == [b'{"id":"k1"}']


async def test_many_are_counted_before_anything_is_done_with_them(first, one, put):
    for n in range(9):
        put(f"k{n}")
    path = f"{LETTERS}/letters"
    status, there, _ = await one.send(path, operation="discard", error_type="ValueError", **REASON)
    assert status == 303
    await one.ended(f"/api{there}")
    page = await one.shows(there, "Discard 9 dead letters")
    assert first.asked == []
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    status, there, _ = await one.send_raw(path, **hidden, confirmed="1")
    assert status == 303
    await one.ended(f"/api{there}")
    await one.shows(there, "9 operations sent", "ann: mended")
    assert len(first.asked) == 9
    assert (await one.page(f"{LETTERS}/jobs"))[1].count("done</span>") == 2


@pytest.mark.parametrize("origin", [None, "http://shop.example", "http://127.0.0.1:1", "null"])
async def test_a_form_of_another_page_does_nothing(first, one, put, origin):
    path = f"{LETTERS}/{put('k1')}"
    fields = {"operation": "discard", **REASON}
    await one.page(LETTERS)
    for guess in ("", "guess") if origin is None else (one.csrf,):
        headers = {"Origin": origin} if origin else {}
        status, _, page = await one.send_raw(path, headers, **fields, csrf=guess)
        assert status == 403
        assert "foreign form" in page
    async with one.post(path, json=fields) as response:
        assert response.status == 400
    assert first.asked == []


async def test_a_form_that_asks_for_nothing_sensible_is_refused(first, one, put):
    path = f"{LETTERS}/{put('k1')}"
    assert (await one.send(path, operation="replay", who="ann", why=" "))[0] == 400
    assert (await one.send(path, operation="drop", **REASON))[0] == 400
    assert (await one.send(f"{LETTERS}/letters", operation="replay", **REASON))[0] == 400
    assert first.asked == []


async def test_what_a_letter_says_stays_text(one, put):
    ident = put(HOSTILE, why=HOSTILE, error_type=HOSTILE, message_type=HOSTILE, trace=HOSTILE)
    for path in (LETTERS, f"{LETTERS}/letters", f"{LETTERS}/{ident}"):
        await one.shows(path, "&lt;script&gt;", hides="<script>")
    _, _, page = await one.send(f"{LETTERS}/{ident}/edit", message=json.dumps({"id": HOSTILE}))
    assert "<script>" not in page
    assert page.count("</textarea>") == 1


def test_differences_are_told_line_by_line():
    lines = differences("{\n  a\n  b\n}", "{\n  a\n  c\n}")
    assert [sign + line for sign, line in map(tuple, lines)] == [" {", "   a", "-  b", "+  c", " }"]


# -- the log of operations --------------------------------------------------------------------------------


def logged(worker: FakeWorker, value: bytes, key: str = "") -> None:
    topic, offset = worker.application.layout.operations_log, len(worker.records)
    worker.records.append(FakeRecord(topic, 0, offset, int(NOW * 1000) + offset, key.encode(), value, ()))


def discarded(worker: FakeWorker, ident: str, why: str) -> None:
    done = Done(
        operation="discard", id="o1", letter=ident, who="ann", why=why, asked_at="a", at="b", result="done",
        state="discarded", topic=ParcelSeen.TOPIC, partition=0, offset=1, key="k1", handler="post.note",
        message_id="m1", job="job-1",
    )  # fmt: skip
    logged(worker, encode_done(done), ident)


def paused(worker: FakeWorker, partition: int, result: str = "paused") -> None:
    done = HandlerDone(
        operation="pause", id="o2", handler="post.note", partition=partition, who="bob", why="it burns",
        asked_at="a", at="b", result=result, state="paused",
    )  # fmt: skip
    logged(worker, encode_done(done))


async def audit(browser: Browser, query: str = "") -> list[Any]:
    return (await browser.json(f"/api{AUDIT}{query}"))[1]["entries"]


async def test_the_log_tells_who_did_what_the_newest_first(first, one):
    discarded(first, "L1", "too old")
    discarded(first, "L2", HOSTILE)
    paused(first, 3)
    logged(first, b"somebody else's")
    page = await one.shows(f"{AUDIT}?limit=3", "is not a log entry")
    assert page.index("it burns") < page.index("&lt;script&gt;")
    assert "<script>alert" not in page
    assert "too old" not in page
    older = re.search(r'rel="prev" href="([^"]+)"', page)
    await one.shows(unescape(older[1]), "too old", hides="it burns")
    # Of one letter it tells also when that is gone.
    assert [each["logged"]["why"] for each in await audit(one, "?letter=L1")] == ["too old"]


async def test_the_log_tells_of_all_partitions_once_for_each_result(first, one):
    for partition, result in ((3, "paused"), (1, "paused"), (2, "already"), (1, "paused")):
        paused(first, partition, result)
    told = [(each["logged"]["result"], each["partitions"]) for each in await audit(one)]
    assert told == [("paused", [1, 3]), ("already", [2])]
    await one.shows(AUDIT, "partitions 1, 3", "partition 2")
