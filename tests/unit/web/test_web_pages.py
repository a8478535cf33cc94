"""What each worker serves about itself, as pages and as JSON."""

import re
from html import unescape
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import msgspec
import pytest
from markupsafe import escape
from web_workers import NOW, FakeStandby, FakeWorker

from streams.console.formatting import ago, previewed, with_times
from streams.control.api.site import MOST_ASKED
from streams.control.base.database_answers import DatabaseAnswer, OutboxAnswer, QueueAnswer, WaitingRow
from streams.control.handlers.awaited_schemas import MOST_NAMED
from streams.engine.life.state import LaneState
from streams.engine.staging.changes import Writes, pack_ids
from streams.engine.staging.inbox import Inbox, inbox_entry
from streams.engine.staging.keys import POSITION, TIMER
from streams.engine.staging.timers import set_timer, timer_name
from streams.engine.way.held_up import Held, HeldUpPartitions
from streams.errors import OutcomeUnknown, RecordRefused, TopicGone
from streams.model.envelope import epoch_seconds
from streams.model.policy.assignment import Assignment
from streams.ports import TP, HeldUp, OpenTransaction, Outgoing

TEMPLATES = Path(__file__).parents[3] / "streams/console/templates"
HOSTILE = "\"><script>alert('x')</script>&amp; \u202e/..?#"


@pytest.fixture
def worker():
    worker = FakeWorker.with_lanes(0, 1, 2, 3, slot=4, url="http://127.0.0.1:6070")
    worker.standbys = {5: FakeStandby(5, records=12)}
    return worker


async def test_a_worker_says_it_is_and_how_its_lanes_stand(browser, worker):
    worker.lanes[2].error = OutcomeUnknown("the answer was lost")
    answer = await browser.found("/api/worker")
    assert (answer["slot"], answer["url"], answer["ready"]) == (4, "http://127.0.0.1:6070", True)
    assert [lane["lane"] for lane in answer["lanes"]] == [0, 1, 2, 3]
    lane = answer["lanes"][2]
    assert (lane["state"], lane["partitions"], lane["commits"]) == ("open", [2, 6], 7)
    assert lane["counters"]["handled"] == 41
    assert lane["error"] == "OutcomeUnknown: the answer was lost"
    assert lane["seconds_since_progress"] == 2
    assert answer["standbys"] == [{"lane": 5, "records": 12}]
    assert answer["choreography"] == [
        {"topic": "post.parcel.seen.v1", "message": "ParcelSeen", "handlers": ["post.note"], "inbox": True}
    ]


async def test_the_page_of_a_worker_links_to_others(browser, worker):
    here, elsewhere, no_address = "127.0.0.1:6071", "elsewhere.example:6071", "javascript:alert(1)"
    worker.owns({0: worker.url, 1: f"http://{here}", 2: f"http://{elsewhere}", 3: no_address})
    worker.lanes[1].state = LaneState.QUARANTINED
    worker.stuck_lanes = [1]
    texts = ("slot 4", "41", "quarantined, stuck", "Not ready", "post.note", "lane 5")
    page = await browser.shows("/worker", *texts, f'<a href="http://{here}/">', elsewhere, no_address)
    # No link leads off this machine, nor to what is no address.
    assert 'href="http://elsewhere' not in page
    assert 'href="javascript' not in page


async def test_a_worker_without_lanes_has_a_page(browser, worker):
    worker.lanes.clear()
    worker.standbys.clear()
    worker.assignment = Assignment()
    assert (await browser.page("/worker"))[0] == 200
    _, answer = await browser.json("/api/worker")
    assert (answer["lanes"], answer["owners"], answer["ready"]) == ([], [], False)


# -- health ----------------------------------------------------------------------------------------------

NO_TROUBLE = {"reasons": [], "warnings": []}


async def not_ready(browser):
    """Why it is not."""
    status, health = await browser.json("/health/ready")
    assert (status, health["status"]) == (503, "not ready")
    return health["reasons"]


async def warned(browser):
    """The warnings of a worker that is ready all the same."""
    status, health = await browser.json("/health/ready")
    assert (status, health["reasons"]) == (200, [])
    assert health["status"] == ("degraded" if health["warnings"] else "ready")
    return health["warnings"]


async def test_a_worker_that_has_joined_is_ready(browser, worker):
    assert await browser.json("/health/ready") == (200, {"status": "ready", **NO_TROUBLE})
    worker.assignment = Assignment()
    assert await browser.json("/health/live") == (200, {"status": "live", **NO_TROUBLE})
    assert await not_ready(browser) == ["the worker has not joined its group yet"]


async def test_a_worker_warns_of_a_topic_that_others_lack(browser, worker):
    topic, *known = worker.application.sources
    worker.assignment = msgspec.structs.replace(
        worker.assignment, topics=tuple(known), waiting={topic: ("http://127.0.0.1:9",)}
    )
    (warning,) = await warned(browser)
    assert warning.startswith(f"{topic} is not consumed yet: http://127.0.0.1:9 does not know it")
    assert warning in unescape(await (await browser.get("/")).text())


async def test_a_worker_warns_of_a_partition_that_is_held_up(browser, worker):
    watch = worker.lanes[1].measures.held_up = HeldUpPartitions(1, dict, None)
    watch.looked = NOW
    by = OpenTransaction(7, producer=4711, epoch=3, last=NOW - 30, transactional_id="billing")
    watch.partitions = {
        TP("post.note.written.v1", 1): Held(HeldUp(7, 12), NOW - 28, by),
        TP("post.note.written.v1", 3): Held(HeldUp(7, 12), NOW - 1),
    }
    (warning,) = await warned(browser)
    assert warning.startswith(
        "post.note.written.v1[1] has been blocked at offset 7 for 28 s, and 12 offsets wait behind"
    )
    assert "producer 'billing' (id 4711, epoch 3) has a transaction open there" in warning


@pytest.mark.parametrize(("ages", "warnings"), [((50, 30, 1), 1), ((70, 30, 1), 0)])
async def test_a_worker_is_degraded_while_a_lane_is_fenced_often(browser, worker, ages, warnings):
    worker.lanes[1].measures.fenced_at.extend(NOW - age for age in ages)
    found = [text[:35] for text in await warned(browser)]
    assert found == ["lane 1 was fenced 3 times in 60 s: "] * warnings


async def test_a_lane_that_opens_again_and_again_is_named(browser, worker):
    lane = worker.lanes[1]
    lane.error = RecordRefused("the broker refuses a batch")
    lane.measures.reopened_at.extend((NOW - 50, NOW - 30))
    assert await warned(browser) == []
    lane.measures.reopened_at.append(NOW - 1)
    (warning,) = await warned(browser)
    assert warning.startswith("lane 1 had to reopen 3 times in 60 s")
    assert "the broker refuses a batch" in warning


async def test_a_worker_warns_of_what_is_wrong_with_topics(browser, worker):
    for lane in worker.lanes.values():
        lane.measures.topics.gone["post.note.written.v1"] = NOW - 10 - lane.number
    standing = worker.lanes[1].measures.topics
    standing.partitions["post-operations"] = 9
    standing.late |= {TP("post.parcel.seen.v1", number): 100 for number in range(4)}
    gone, differs, late = await warned(browser)
    longest = 10 + max(worker.lanes)
    assert gone.startswith(f"topic post.note.written.v1 has been gone for {longest} s")
    assert differs.startswith("topic post-operations has 9 partitions")
    assert late.startswith("up to 400 records of post.parcel.seen.v1 were deleted before they were read")
    assert "post.parcel.seen.v1[2] at 100 and 1 more" in late


async def test_a_worker_warns_of_others_that_write_its_topics(browser, worker):
    worker.lanes[1].foreign = (TP("post.note.read.v1", 1), TP("post.note.read.v1", 5))
    (warning,) = await warned(browser)
    assert warning.startswith(
        "post.note.read.v1 has records of another writer: to keep the order of the log, lane 1 now reads"
    )


async def test_a_worker_that_was_told_to_end_is_not_ready(browser, worker):
    worker.stopping = True
    assert await not_ready(browser) == [
        "the worker is stopping: it finishes its commits and hands its lanes over"
    ]


async def test_a_stuck_lane_says_why_and_what_it_waits_for(browser, worker):
    worker.stuck_lanes = [1, 2, 3]
    worker.lanes[1].last_progress -= 40
    worker.lanes[1].error = OutcomeUnknown("the answer was lost")
    worker.gate(2).under_way = 3
    worker.lanes[3].measures.in_transaction = True
    assert await not_ready(browser) == [
        "lane 1 is open, without progress for 42 s; its last error: the answer was lost",
        "lane 2 is open, without progress for 2 s; it waits for post.note (3 keys)",
        "lane 3 is open, without progress for 2 s; it waits for a transaction",
    ]


async def test_what_a_worker_warns_of_itself_is_shown(browser, worker):
    worker.own_warnings = ["this process may have 1024 files open"]
    assert await warned(browser) == worker.own_warnings
    await browser.shows("/", "1024 files")


async def test_what_lanes_wait_out_is_said_first(browser, worker):
    full = "the disk is full: /var/lane-1: make room there"
    worker.lanes[1].trouble = worker.lanes[2].trouble = full
    worker.gate(3).breaker.start_half_open(NOW)
    assert (await warned(browser))[0] == f"{full}; waiting: lane 1, lane 2"
    worker.stuck_lanes = [1]
    worker.lanes[1].last_progress -= 40
    assert await not_ready(browser) == [f"{full}; lane 1 waits, without progress for 42 s"]


async def test_a_worker_is_not_ready_while_a_lane_recovers(browser, worker):
    worker.lanes[1].state = LaneState.OPENING
    assert await not_ready(browser) == ["lane 1 is opening"]
    worker.lanes[1].measures.recovering(1234)
    assert await not_ready(browser) == ["lane 1 is opening: 1234 changelog records are left to read"]
    worker.stuck_lanes = [1]
    (reason,) = await not_ready(browser)
    assert "without progress" in reason


async def test_a_lane_that_opens_again_is_ready(browser, worker):
    worker.lanes[1].state, worker.lanes[1].reopened = LaneState.OPENING, 1
    assert await warned(browser) == []


async def test_a_worker_is_degraded_while_a_breaker_is_open(browser, worker):
    for lane in (1, 2):
        worker.gate(lane).breaker.start_half_open(NOW)
    (warning,) = await warned(browser)
    assert warning.startswith("the circuit breaker of post.note is open in 2 lanes")


@pytest.mark.parametrize(
    ("age", "expected"),
    [(59, []), (61, ["lane 1 is behind: its oldest message was written 61 s ago, and 70 wait"])],
)
async def test_a_worker_is_degraded_while_a_lane_is_behind(browser, worker, age, expected):
    worker.lanes[1].measures.intake = SimpleNamespace(lag=70, oldest=int((NOW - age) * 1000))
    assert await warned(browser) == expected


@pytest.mark.promise("awaited-schemas")
async def test_a_worker_warns_while_messages_wait_for_a_schema(browser, worker):
    unread = worker.gate(3).unread
    unread.add(b"one", "post.made.v1", b"00000000000000aa", NOW - 60)
    unread.add(b"two", "post.made.v1", b"00000000000000aa", NOW - 5)
    (warning,) = await warned(browser)
    assert "2 keys wait for schema 00000000000000aa, for post.note, since 2" in warning
    assert "start a worker that has it" in warning
    assert "schema 00000000000000aa" in (await browser.page("/worker"))[1]
    unread.forget(b"one")
    unread.forget(b"two")
    assert await warned(browser) == []


async def test_of_many_schemas_those_that_wait_longest_are_named(browser, worker):
    unread = worker.gate(3).unread
    for number in range(1000):
        unread.add(b"%d" % number, "post.made.v1", b"%016x" % number, NOW - number)
    warnings = await warned(browser)
    assert len(warnings) == MOST_NAMED
    assert f"schema {999:016x}" in warnings[0]


@pytest.mark.promise("unreadable-operations")
async def test_a_worker_warns_of_announcements_that_nobody_can_read(browser, worker):
    worker.unreadable_announcements = 2
    (warning,) = await warned(browser)
    topic = worker.application.layout.announcements
    assert warning.startswith(f"2 announcements on {topic} cannot be read")
    assert "announcement_unreadable" in warning
    shown = (await browser.json("/api/worker"))[1]
    assert (shown["unreadable_announcements"], shown["warnings"]) == (2, [warning])
    assert f"2 announcements on {topic}" in (await browser.page("/worker"))[1]
    worker.unreadable_announcements = 0
    assert await warned(browser) == []


# -- tables ----------------------------------------------------------------------------------------------


async def test_the_tables_are_the_applications_and_the_lanes_own(browser, worker):
    worker.put_raw("_inbox-00002777", 0, b"h" * 8 + b"id-1", b"")
    worker.put_raw("_timers_by_due", 0, b"index", b"")
    _, answer = await browser.json("/api/tables")
    found = [(table["name"], table["builtin"]) for table in answer["tables"]]
    assert found == [("parcels", False), ("_positions", True), ("_timers", True), ("_inbox-00002777", True)]
    parcels = answer["tables"][0]
    assert parcels["about"] == "Parcel: A parcel, weighed"
    assert parcels["changelog"] == "post-parcels-changelog"
    await browser.shows("/tables", 'href="/tables/_inbox-00002777">')


async def row(browser, table):
    _, answer = await browser.json(f"/api/tables/{table}")
    (row,) = answer["rows"]
    return row


def put_lane_row(worker, partition, key, value):
    table, local, stored = next(Writes(1.0).of("lane", partition, [(key, value)]))
    worker.put_raw(table, partition, local[2:], stored)


async def test_a_row_is_shown_decoded_with_its_place(browser, worker):
    worker.put("k1", note="fragile")
    partition = worker.partition("k1")
    assert await row(browser, "parcels") == {
        "key": "k1", "subkey": "", "partition": partition, "lane": partition % 4,
        "value": {"note": "fragile"}, "schema": "0" * 16, "error": "", "hex": "",
    }  # fmt: skip


async def test_a_row_that_does_not_decode_is_shown_as_bytes(browser, worker):
    raw = b"\0" * 8 + b"{oops"
    worker.put("k1", raw=raw)
    shown = await row(browser, "parcels")
    assert (shown["value"], shown["hex"]) == (None, raw.hex())
    assert "Parcel" in shown["error"]
    assert shown["error"].replace('"', "&#34;")[:20] in (await browser.page("/tables/parcels"))[1]


async def test_following_the_next_links_of_the_pages_shows_every_key(browser, worker):
    keys = [f"key-{n}" for n in range(25)]
    for key in keys:
        worker.put(key)
    seen, path = [], "/tables/parcels?limit=4"
    while path:
        _, page = await browser.page(path)
        seen += [key for key in keys if f">{key}</a>" in page]
        link = page.partition('">Next page</a>')[0].rpartition('href="')[2]
        path = link.replace("&amp;", "&") if "Next page" in page else ""
    assert sorted(seen) == sorted(keys)


@pytest.mark.parametrize(
    ("stored", "value"),
    [(b"17", {"offset": 17}), (b"17 18-20,25-26", {"offset": 17, "handled_ahead": ["18-20", "25-26"]})],
)
async def test_positions_are_shown_by_source_topic(browser, worker, stored, value):
    put_lane_row(worker, 5, POSITION + b"post.parcel.seen.v1", stored)
    shown = await row(browser, "_positions")
    assert (shown["key"], shown["partition"], shown["value"]) == ("post.parcel.seen.v1", 5, value)


async def test_timers_are_shown_with_what_is_sent_and_when(browser, worker):
    change = set_timer(timer_name(b"post.note", b"k1", "late"), 1.5, "post.late.v1", Outgoing(b"k1", b"", ()))
    assert change.key.startswith(TIMER)
    put_lane_row(worker, 3, change.key, change.value)
    shown = await row(browser, "_timers")
    assert (shown["key"], shown["subkey"]) == ("k1", "late")
    value = {"due": "1970-01-01T00:00:01.500Z", "topic": "post.late.v1", "handler": "post.note"}
    assert shown["value"] == value


async def test_inbox_entries_are_shown_by_message_id(browser, worker):
    writes = Writes(86400.0)
    store = worker.lanes[1].store
    key = Inbox(store, writes, 1.0).key(b"post.note", b"test", b"m-1")
    entry = inbox_entry(key, 86400_000 * 3, b"seen")
    (record,) = pack_ids([entry])
    store.apply(writes.of("inbox", 1, [(b"", record)]), {})
    shown = await row(browser, "_inbox-00000003")
    assert (shown["key"], shown["value"]["note"], shown["lane"]) == ("m-1", "seen", 1)


async def test_a_hostile_key_and_row_stay_text_on_every_page(browser, worker):
    worker.put(HOSTILE, HOSTILE, note=HOSTILE)
    for path, params in [
        ("/tables/parcels", {"prefix": HOSTILE}),
        ("/tables/parcels", {"prefix": "", "lane": HOSTILE}),
        ("/tables/parcels/rows", {"key": HOSTILE}),
        ("/tables/parcels/rows", {"key": HOSTILE + "no"}),
        ("/tables/" + "%3Cscript%3E", {}),
    ]:
        _, page = await browser.page(path, params=params)
        assert "&lt;script&gt;" in page
        assert "<script>" not in page
    _, answer = await browser.json("/api/tables/parcels/rows", params={"key": HOSTILE})
    assert answer["rows"][0]["value"] == {"note": HOSTILE}


async def test_the_link_of_a_hostile_key_leads_to_its_row(browser, worker):
    worker.put(HOSTILE, note="found")
    _, page = await browser.page("/tables/parcels")
    link = page.partition("/rows?key=")[2].partition('"')[0]
    await browser.shows("/tables/parcels/rows?key=" + link, "found")


# -- lanes that cannot be read ---------------------------------------------------------------------------


async def test_lanes_that_are_not_open_are_left_out_and_named(browser, worker):
    for n in range(20):
        worker.put(f"k{n}")
    worker.lanes[1].state = LaneState.OPENING
    _, answer = await browser.json("/api/tables/parcels")
    assert answer["left_out"] == {"1": "lane 1 is opening"}
    assert answer["lanes"] == [0, 2, 3]
    assert {row["lane"] for row in answer["rows"]} == {0, 2, 3}
    assert "lane 1 is opening" in (await browser.page("/tables/parcels"))[1]


async def test_a_closed_lane_that_is_asked_for_is_refused(browser, worker):
    worker.lanes[1].state = LaneState.BACKING_OFF
    worker.lanes[1].error = OutcomeUnknown("the answer was lost")
    status, problem = await browser.json("/api/tables/parcels?lane=1")
    assert (status, problem["error"]) == (503, "lane_not_open")
    assert problem["detail"] == "lane 1 is backing_off: the answer was lost"


async def test_a_lane_that_stays_closed_is_not_waited_for(browser, worker):
    worker.patience = 3600.0
    lane = worker.lanes[worker.lane("k1")]
    lane.state, lane.error = LaneState.BACKING_OFF, TopicGone(["post.parcel.seen.v1"])
    status, problem = await browser.json("/api/tables/parcels/rows?key=k1")
    assert (status, problem["error"]) == (503, "lane_closed")
    assert "the cluster no longer has post.parcel.seen.v1" in problem["detail"]


async def test_a_quarantined_lane_can_be_read(browser, worker):
    worker.put("k1")
    worker.lanes[worker.lane("k1")].state = LaneState.QUARANTINED
    assert (await browser.json("/api/tables/parcels/rows?key=k1"))[0] == 200


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/api/tables/nothing", 404, "unknown_table"),
        ("/api/tables/_timers_by_due", 404, "unknown_table"),
        ("/api/tables/_inbox-1", 404, "unknown_table"),
        ("/api/tables/nothing/rows?key=a", 404, "unknown_table"),
        ("/api/tables/parcels?cursor=!", 400, "bad_cursor"),
        ("/api/tables/parcels?limit=0", 400, "bad_limit"),
        ("/api/tables/parcels?lane=4", 400, "bad_lane"),
        ("/api/tables/parcels?lane=-1", 400, "bad_lane"),
        ("/api/tables/parcels?partition=8", 400, "bad_partition"),
        ("/api/tables/parcels?partition=1&lane=2", 400, "bad_lane"),
        ("/api/tables/_positions?prefix=a", 400, "no_prefix"),
        ("/api/tables/_positions/rows?key=a", 400, "no_lookup"),
        ("/api/tables/parcels/rows", 400, "no_key"),
        ("/api/tables/parcels/rows?key=a&limit=x", 400, "bad_limit"),
        ("/api/tables/parcels/rows?key=a&cursor=!", 400, "bad_cursor"),
        ("/api/tables/parcels/rows?key=a", 404, "no_row"),
        ("/api/nothing", 404, "not_found"),
    ],
)
async def test_what_cannot_be_answered_is_refused(browser, path, status, error):
    found, problem = await browser.json(path)
    assert (found, problem["error"]) == (status, error)
    assert problem["detail"]
    found, page = await browser.page(path.removeprefix("/api"))
    assert found == status
    assert error.replace("_", " ") in page


@pytest.mark.parametrize("path", ["/table", "/table/", "/graph/", "/router/", "/stats", "/performance/"])
async def test_nothing_is_served_where_fausts_own_pages_would_be(browser, path):
    assert (await browser.page(path))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_pages_are_only_read(browser, method):
    async with browser.request(method, "/api/worker") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET,HEAD"


@pytest.mark.parametrize(
    ("expected", "hosts"),
    [
        ((403, "foreign_host"), ["shop.example", "127.0.0.1.shop.example", "localhost.example:1", "", "[::"]),
        ((200, None), ["localhost", "LOCALHOST:6066", "127.0.0.1:1", "127.9.9.9", "[::1]:6066"]),
    ],
)
async def test_only_the_names_of_this_machine_are_served(browser, expected, hosts):
    for host in hosts:
        status, answer = await browser.json("/api/worker", headers={"Host": host})
        assert (status, answer.get("error")) == expected, host


async def test_a_page_may_load_the_files_of_its_worker_alone(browser):
    async with browser.get("/") as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        page = await response.text()
    loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert {"style.css", "icon.svg", "htmx.min.js"} <= {re.split("[/?]", path)[2] for path in loaded}
    for path in loaded:
        async with browser.get(path) as response:
            assert response.status == 200
            assert response.content_type in ("text/css", "text/javascript", "image/svg+xml")
            assert "immutable" in response.headers["Cache-Control"]
            assert await response.read()
    assert (await browser.page("/static/base.html"))[0] == 404


async def test_pages_and_their_files_are_compressed_for_who_takes_it(browser):
    async with browser.get("/tables", headers={"Accept-Encoding": "gzip"}) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert "<h1>" in await response.text()
    async with browser.get("/tables", headers={"Accept-Encoding": "identity"}) as response:
        assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s ago"), (59, "59 s ago"), (7260, "2 h ago"), (-12, "in 12 s")]
)
def test_a_time_is_an_age_with_its_title(seconds, words):
    shown = ago("2026-11-25T02:03:36.646Z", epoch_seconds("2026-11-25T02:03:36.646Z") + seconds)
    assert shown.endswith(f'title="2026-11-25 02:03:36.646 UTC">{words}</time>')


def test_times_in_a_text_are_times_of_day():
    shown = with_times("by <ann> since 2027-01-15T07:59:00Z, before 2026-12-01T07:59:00Z", NOW)
    assert shown.startswith("by &lt;ann&gt; since <time ")
    assert re.findall(r">([^<>]+)</time>", shown) == ["07:59:00 UTC", "2026-12-01 07:59 UTC"]


def test_what_is_no_time_is_shown_as_it_is():
    assert escape(ago("<never>", NOW)) == "&lt;never&gt;"


def test_a_value_is_shown_by_its_fields():
    value = {"order": {"lines": [{"sku": "a", "units": 2}, {"sku": "b", "units": 1}], "cents": 5}, "no": None}
    assert previewed(value) == [("lines", "a 2, b 1"), ("cents", "5")]
    assert previewed(value, "cents order.lines nothing") == [("lines", "a 2, b 1"), ("cents", "5")]
    assert previewed("text" * 99) == [("", "text" * 15 + "...")]
    assert previewed({}) == []


def test_no_template_has_a_style_or_script_of_its_own():
    own = re.compile(r"<style|<script(?! src=)|\sstyle=|\son\w+=|javascript:")
    for template in TEMPLATES.glob("*.html"):
        assert not own.search(template.read_text()), template


async def test_a_store_that_fails_is_an_error(browser, worker):
    worker.put("k1")
    worker.lanes[worker.lane("k1")].store.close()
    assert await browser.refusal("/api/tables/parcels/rows?key=k1") == (500, "failed")


# -- how it is asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a/b", "a%2Fb", "a%252Fb", "100%", "a+b c", "ä", "a//b", ".."])
async def test_a_name_in_a_path_is_read_back_exactly(browser, key):
    _, problem = await browser.json(f"/api/sagas/{quote('order:' + key, safe='')}")
    assert key in problem["detail"]


async def test_whoever_asks_for_the_head_alone_gets_it(browser):
    async with browser.request("HEAD", "/api/worker") as response:
        assert (response.status, await response.read()) == (200, b"")
        assert int(response.headers["Content-Length"]) > 0


async def test_what_is_too_large_is_refused(browser):
    large = BytesIO(b" " * (MOST_ASKED + 1))
    async with browser.post("/api/dead-letters/operations", data=large) as response:
        assert response.status == 413
        assert (await response.json())["error"] == "too_large"


# -- the database edge -----------------------------------------------------------------------------------


async def test_the_page_of_the_outbox_says_what_waits(browser, worker):
    await browser.shows("/outbox", "No database is configured", "set STEADFAUST_POSTGRES_URL")
    worker.edge = DatabaseAnswer(missing="PostgreSQL did not answer within 5 s", silent=True)
    await browser.shows("/outbox", "does not answer: PostgreSQL did not", hides="without a database")
    row = WaitingRow(
        id="m-1", topic="t", aggregate=HOSTILE, created_at="", attempts=2, error="too large", retry_at=""
    )
    outbox = OutboxAnswer(
        relay="poll", unpublished=1200, failed=1, oldest_seconds=2.5, table_bytes=5_000_000, slot="",
        slot_warning="", waiting=[row],
    )  # fmt: skip
    queue = QueueAnswer(queue="emails", jobs={"ready": 3, "failed": 1}, oldest_ready=1.5)
    worker.edge = DatabaseAnswer(outbox=outbox, queues=[queue])
    await browser.shows(
        "/outbox",
        "1,200 rows wait in the outbox, the oldest for 2.5 s; brokers refused 1",
        "too large",
        "emails",
        "No consumer",
        hides="<script>",
    )
    worker.edge = DatabaseAnswer()
    assert "This database has no outbox" in (await browser.page("/outbox"))[1]
