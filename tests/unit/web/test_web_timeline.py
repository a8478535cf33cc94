"""What happened to a key: its timeline, what is held of it, and the one box that finds it."""

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from test_web_sagas import VisitTransition, VisitWanted, make_application
from web_workers import NOW, Browser, FakeWorker, ParcelSeen

import streams.console
from streams.control.base import scans
from streams.control.base.view import Problem
from streams.control.history.search import since_of
from streams.control.history.timeline import MOST_SHOWN, timeline
from streams.model.claim import VALUE, claim_of, with_claim
from streams.model.codecs import AvroCodec, Schemas
from streams.model.envelope import CAUSATION, CORRELATION, FINGERPRINT, ID, SOURCE, TYPE
from streams.ports import TP, Damaged
from streams.testing.log import FakeRecord

HOSTILE = "</pre><script>alert(1)</script>"
MS = int(NOW * 1000)
T = ParcelSeen.TOPIC
STYLE = (Path(streams.console.__file__).parent / "static" / "style.css").read_text()


def record(
    ident: str,
    *,
    topic: str = T,
    key: str = "k1",
    at: int = 0,
    cause: str = "",
    offset: int = 0,
    partition: int = 0,
    value: bytes | None = None,
    correlation: str = "",
    **more: str,
) -> FakeRecord:
    """A record `at` milliseconds after a minute ago."""
    headers = {ID: ident, TYPE: topic, SOURCE: "post/post", CORRELATION: correlation, CAUSATION: cause}
    given = [(name, text.encode()) for name, text in headers.items() if text]
    given += [(name.replace("_", "-"), text.encode()) for name, text in more.items()]
    value = b'{"id":"%s"}' % key.encode() if value is None else value
    return FakeRecord(topic, partition, offset, MS - 60_000 + at, key.encode(), value, given)


def there(worker: FakeWorker, *records: FakeRecord) -> None:
    """Records, each in the partition of its key; those of retries and dead letters in the only one."""
    worker.records += [
        each._replace(partition=worker.partition(each.key.decode()) if each.topic == T else 0)
        for each in records
    ]


# -- assembling -------------------------------------------------------------------------------------------


@pytest.fixture
def found(worker):
    return lambda *records: timeline(worker.application, records)


def test_entries_are_in_order_of_time_and_causes(found):
    records = [
        record("first"),
        record("effect", cause="cause", at=5, offset=1),
        record("cause", cause="first", at=5, offset=2),
        record("last", cause="elsewhere", at=1200, offset=3),
    ]
    for order in permutations(records):
        entries = found(*order)
        assert [each.id for each in entries] == ["first", "cause", "effect", "last"]
        assert [each.number for each in entries] == [1, 2, 3, 4]
        assert [each.after_ms for each in entries] == [0, 5, 5, 1200]
        assert [each.cause for each in entries] == [0, 1, 2, 0]
    assert entries[3].caused_by == "elsewhere"
    first = entries[0]
    assert (first.handlers, first.value) == (["post.note"], {"id": "k1"})
    assert (first.type, first.kind) == ("ParcelSeen", "event")


def test_a_circle_of_causes_is_not_followed_for_ever(found):
    entries = found(record("a", cause="b"), record("b", cause="a"), record("c", cause="c"))
    ids = {each.number: each.id for each in entries}
    assert {each.id: ids[each.cause] for each in entries} == {"a": "b", "b": "a", "c": "c"}


def test_retries_and_dead_letters_name_their_error_and_message(found):
    retry = record(
        "m", topic=f"{T}.retry-1", at=10, retry_handler="post.note", retry_attempt="1",
        retry_error_type="ConnectionError", retry_error_message="no answer", retry_due="soon",
    )  # fmt: skip
    letter = record(
        "m", topic=f"{T}.dlq", at=20, dlq_handler="post.note", dlq_error_type="ValueError",
        dlq_error_message="no such parcel", dlq_retry_count="3",
    )  # fmt: skip
    sent, tried, given_up = found(letter, retry, record("m"))
    assert [each.kind for each in (sent, tried, given_up)] == ["event", "retry", "dead letter"]
    assert tried.failure == {
        "attempt": "1", "error-type": "ConnectionError", "error-message": "no answer", "due": "soon",
    }  # fmt: skip
    assert given_up.failure["error-message"] == "no such parcel"
    assert (tried.cause, given_up.cause, sent.cause) == (1, 1, 0)
    assert tried.handlers == given_up.handlers == ["post.note"]
    assert given_up.value == {"id": "k1"}


def test_the_kind_of_a_message_is_that_of_its_class():
    app = make_application()
    topics = [VisitWanted.TOPIC, "visits.commands.ring", "visits.saga.replies", VisitTransition.TOPIC]
    records = [record(f"m{n}", topic=topic, at=n) for n, topic in enumerate([*topics, "visits.saga.repairs"])]
    kinds = [each.kind for each in timeline(app, records)]
    assert kinds == ["event", "command", "reply", "transition", "repair"]


@pytest.mark.parametrize(
    ("changes", "why", "shown"),
    [
        ({"value": b"\xff\x00"}, "ParcelSeen", "ff00"),
        ({"value": b"{}"}, "ParcelSeen", "7b7d"),
        ({"value": b" " * (MOST_SHOWN + 1)}, "too many to be shown", "20" * 200),
        ({"topic": "unknown.v1"}, "no message of unknown.v1", b'{"id":"k1"}'.hex()),
    ],
)
def test_what_cannot_be_decoded_is_shown_as_bytes(found, changes, why, shown):
    (entry,) = found(record("m", **changes))
    assert why in entry.unreadable
    assert (entry.hex, entry.value) == (shown, None)


def test_tombstones_damaged_records_and_bare_ones_are_shown(found):
    gone = record("m")._replace(value=None)
    damaged = Damaged(T, 0, 7, MS, None, b"\x01", (), "a record", "its length is wrong")
    bare = FakeRecord(T, 0, 8, MS, b"k1", b"\xff", [("ce_id", None)])
    entries = {each.offset: each for each in found(gone, damaged, bare)}
    assert entries[0].unreadable == "it has no value"
    assert (entries[7].unreadable, entries[7].hex) == ("its length is wrong", "01")
    assert (entries[8].id, entries[8].hex) == ("", "ff")


def test_a_payload_by_reference_is_named(found):
    claim = claim_of("payloads", T, "m", b"x" * 2000)
    sent = record("m", value=VALUE)
    (entry,) = found(sent._replace(headers=with_claim(sent.headers, claim)))
    assert entry.reference == f"{claim.reference} (2,000 bytes)"
    assert not entry.unreadable


def test_a_schema_that_nobody_knows_is_said(found, worker):
    schema = '{"type":"record","name":"P","fields":[{"name":"id","type":"string"}]}'
    worker.application.message_codecs[T] = AvroCodec(ParcelSeen, schema, Schemas())
    sent = record("m", value=b"\x04k1")
    (entry,) = found(sent._replace(headers=[*sent.headers, (FINGERPRINT, b"0123456789abcdef")]))
    assert "0123456789abcdef" in entry.unreadable
    assert entry.hex == b"\x04k1".hex()


# -- search -----------------------------------------------------------------------------------------------


async def search(browser: Browser, query: str) -> Any:
    return (await browser.json(f"/api/search?q={query}"))[1]


async def ids_of(browser: Browser, query: str) -> list[str]:
    return [each["id"] for each in (await search(browser, query))["entries"]]


async def leads_to(browser: Browser, query: str) -> tuple[int, str]:
    async with browser.get(f"/search?q={query}", allow_redirects=False) as response:
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        return response.status, response.headers.get("Location", "")


async def test_one_search_has_timeline_rows_letters_waiting_and_timers(browser, worker):
    worker.put("k1", note="weighed")
    letter = worker.put_letter("k1", why="no such parcel")
    worker.wait("k1", due=NOW + 12, attempts=2)
    worker.ring("k1", NOW + 30)
    there(worker, record("a"), record("b", cause="a", at=7), record("c", key="k2"))
    assert await ids_of(browser, "k1") == ["a", "b"]
    held = (await search(browser, "k1"))["held"]
    assert held["tables"][0]["rows"][0]["value"] == {"note": "weighed"}
    assert [each["id"] for each in held["letters"]] == [letter]
    (waiting,) = held["waiting"]
    assert (waiting["handler"], waiting["reason"], waiting["due_in"]) == ("post.note", "retry", 12.0)
    assert (waiting["id"], waiting["attempts"]) == ("w-k1", 2)
    assert [(each["name"], each["due_in"]) for each in held["timers"]] == [("late-0", 30.0)]
    status, page = await browser.page("/search?q=k1", allow_redirects=False)
    assert status == 200
    for text in ("due in 12 s", "due in 30 s", "no such parcel", "weighed", "Caused by", 'href="#e1"'):
        assert text in page
    raw = re.search(r'href="(/topics/[^"]+)"', page)
    assert (await browser.page(raw[1]))[0] == 200  # the record itself


async def test_a_key_is_looked_for_in_its_own_partitions(browser, worker):
    there(worker, record("a"))
    await search(browser, "k1")
    question, rows = worker.scanned
    number = worker.partition("k1")
    assert (rows.partitions, rows.rows) == ((TP("post-parcels-changelog", number),), True)
    retries = [TP(f"{T}.retry-{tier}", 0) for tier in (1, 2, 3)]
    sent_on = TP(f"post-{T}-repartition", number)
    assert set(question.partitions) == {TP(T, number), sent_on, *retries, TP(f"{T}.dlq", 0)}
    assert question.since_ms == MS - 3_600_000


async def test_what_is_no_key_is_looked_for_in_all_partitions(browser, worker):
    there(worker, *(record(f"m-{n}", key=f"k{n}", correlation="together", offset=n) for n in range(5)))
    found = await search(browser, "together")
    assert found["everywhere"]
    assert len(found["entries"]) == 5
    assert await ids_of(browser, "m-3") == ["m-3"]


async def test_everywhere_follows_the_correlation_of_a_key(browser, worker):
    there(
        worker,
        record("a", key="k1", correlation="c-1"),
        record("b", key="k7", correlation="c-1", cause="a", at=5),
        record("x", key="k7", correlation="c-2"),
    )
    assert await ids_of(browser, "k1") == ["a"]
    found = await search(browser, "k1&everywhere=1")
    assert [(each["id"], each["cause"]) for each in found["entries"]] == [("a", 0), ("b", 1)]


async def test_a_bounded_look_says_how_far_it_came(browser, worker):
    there(worker, *(record(f"m-{n}", at=n * 1000, offset=n) for n in range(10)))
    found = await search(browser, "k1&most=4")
    assert (found["looked"], len(found["entries"])) == (4, 4)
    assert found["stopped"] == "so many are looked at"
    page = await browser.shows("/timeline?q=k1&most=4", f"This page is complete only until {found['until']}")
    on = re.search(r'href="([^"]+)">Continue from there', page)[1].replace("&amp;", "&")
    await browser.shows(on.replace("most=4", "most=400"), "m-9", hides="m-2")


async def test_nothing_found_says_how_to_look_further(browser):
    status, page = await browser.page("/search?q=nobody", allow_redirects=False)
    assert status == 200
    for said in (
        "No message was found",
        "Nothing found",
        "fields of messages are not searched",
        "which has nothing for this key",
        "all partitions",
        "since=6h",
    ):
        assert said in page
    _, page = await browser.page("/search?q=nobody&since=365d", allow_redirects=False)
    assert "Look back" not in page


async def test_the_one_thing_that_is_found_is_gone_to(browser, worker):
    worker.put("a row", note="weighed")
    assert await leads_to(browser, "a row") == (303, "/tables/parcels/rows?key=a+row")
    there(worker, record("m", key="only/message"))
    assert await leads_to(browser, "only/message") == (303, "/timeline?q=only%2Fmessage")
    await browser.shows("/search?q=only/message", "ParcelSeen")


async def test_an_owner_that_is_not_there_leaves_the_timeline(browser, worker):
    there(worker, record("a"))
    del worker.lanes[worker.lane("k1")]
    worker.owns({})
    status, page = await browser.page("/search?q=k1", allow_redirects=False)
    assert status == 200
    assert "is not known: lane" in page
    assert "ParcelSeen" in page


async def test_a_hostile_key_value_header_and_error_stay_text(browser, worker):
    worker.put(HOSTILE, HOSTILE, note=HOSTILE)
    worker.put_letter(HOSTILE, why=HOSTILE)
    worker.wait(HOSTILE, due=NOW + 1)
    worker.ring(HOSTILE, NOW + 1)
    there(
        worker,
        record(HOSTILE, key=HOSTILE, cause=HOSTILE, correlation=HOSTILE + "c", value=b'{"id":"<script>"}'),
        record("r", key=HOSTILE, topic=f"{T}.retry-1", retry_error_message=HOSTILE, retry_handler=HOSTILE),
        record("d", key=HOSTILE, topic=f"{T}.dlq", dlq_error_message=HOSTILE, value=HOSTILE.encode()),
    )
    for path in ("/search", "/timeline"):
        async with browser.get(path, params={"q": HOSTILE}, allow_redirects=False) as response:
            page = await response.text()
            policy = response.headers["Content-Security-Policy"]
        assert page.count("&lt;script&gt;") > 10
        assert "<script>" not in page
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
    assert "<script>" not in (await browser.page("/search", params={"q": HOSTILE + "no"}))[1]
    assert "<script>" not in (await browser.page("/tables/parcels"))[1]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("q=", "no_key"),
        ("q=a&since=yesterday", "bad_since"),
        ("q=a&since=2w", "bad_since"),
        ("q=a&most=0", "bad_most"),
        (f"q=a&most={scans.MOST_RECORDS + 1}", "bad_most"),
    ],
)
async def test_a_search_that_means_nothing_is_refused(browser, query, error):
    assert await browser.refusal(f"/api/search?{query}") == (400, error)


async def test_an_empty_box_says_what_may_be_searched(browser):
    await browser.shows("/search", "message id")


def test_ages_and_times():
    assert since_of("", NOW) is None
    assert since_of("2h", NOW) == NOW - 7200
    assert since_of("1.5d", NOW) == NOW - 129_600
    assert since_of("90", NOW) == NOW - 90
    assert since_of("2026-01-01T00:00:00Z", NOW) == 1_767_225_600
    with pytest.raises(Problem):
        since_of("-1h", NOW)


# -- how it looks -----------------------------------------------------------------------------------------


def test_colours_have_the_contrast_of_wcag_aa_in_both_schemes():
    schemes = [each for each in re.findall(r":root \{([^}]*)\}", STYLE) if "--page" in each]
    assert len(schemes) == 2
    assert "prefers-color-scheme: dark" in STYLE
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): #([0-9a-f]{6})", scheme))
        for ground in ("page", "surface", "sunken"):
            for name in ("text", "muted", "link", "red", "amber", "green"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
            assert contrast(colours["edge"], colours[ground]) >= 3.0
        for name in ("red", "amber", "green", "blue"):
            assert contrast(colours[name], colours[f"{name}-soft"]) >= 4.5, name
        assert contrast(colours["on-fill"], colours["link"]) >= 4.5
    named = {colour for scheme in schemes for colour in re.findall("#.{6}", scheme)}
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", STYLE)) <= named


async def test_every_box_has_a_label_and_focus_is_seen(browser):
    assert ":focus-visible" in STYLE
    for path in ("/", "/tables/parcels", "/sagas", "/search"):
        _, page = await browser.page(path)
        boxes = len(re.findall(r"<(?:input|select)\b", page))
        within = len(re.findall(r"<label[^>]*>[^<]*<(?:input|select)\b", page))
        assert boxes == within + len(re.findall(r'<label[^>]* for="', page))
        assert 'action="/search"' in page


def contrast(first: str, second: str) -> float:
    """As WCAG 2 has it."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


TRACE = "0af7651916cd43dd8448eb211c80319c"


async def traces_of(worker: FakeWorker, browser: Browser, *headers: str) -> str:
    there(worker, *(record(f"m{n}", offset=7 + n, traceparent=each) for n, each in enumerate(headers)))
    return (await browser.page("/timeline?q=k1"))[1]


async def test_only_a_trace_is_a_link(browser, worker):
    worker.trace_url = 'https://traces.example/trace/{trace_id}?from=timeline&x="y'
    hostile = "javascript:alert(1)"
    ids = (f"{TRACE}-b7ad6b7169203331", f"{hostile}-b7ad6b7169203331", f"{'0' * 32}-1")
    page = await traces_of(worker, browser, *(f"00-{each}-01" for each in ids))
    link = f"https://traces.example/trace/{TRACE}?from=timeline&amp;x=&#34;y"
    assert f'<a href="{link}" rel="noopener noreferrer">{TRACE}</a>' in page
    assert page.count("traces.example") == 1
    assert f"<dt>Trace<dd>{hostile}" in page
    assert 'href="javascript' not in page


async def test_a_message_leads_to_its_record_and_names_its_trace(browser, worker):
    page = await traces_of(worker, browser, f"00-{TRACE}-b7ad6b7169203331-01", "junk")
    assert f'<a href="/topics/{T}/{worker.partition("k1")}/7">' in page
    assert f"<dt>Trace<dd>{TRACE}" in page
    assert page.count("<dt>Trace") == 1


async def test_what_lanes_know_is_shown_while_kafka_is_away(worker, browser):
    worker.put("k1", note="here")
    worker.away = "no broker answered"
    status, answer = await browser.json("/api/search?q=k1")
    assert (status, answer["held"]["tables"][0]["table"]) == (200, "parcels")
    assert "Kafka does not answer: no broker answered" in answer["stopped"]
    assert "Kafka does not answer" in answer["changes_stopped"]
    await browser.shows("/timeline?q=k1", "Kafka does not answer: no broker answered")


async def test_names_of_handlers_topics_and_tables_are_found(browser):
    for name, there in (("post.note", "/handlers/"), (T, "/topics/"), ("parcels", "/tables/")):
        async with browser.get("/search", params={"q": name}, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, f"{there}{name}")
    named = (await browser.found("/api/search", params={"q": "Parcel"}))["named"]
    assert next(each["name"] for each in named) == "parcels", "what begins so comes first"
    assert {each["kind"] for each in named} == {"table", "topic"}
    await browser.shows("/search?q=parcel", 'href="/tables/parcels">table parcels')


async def test_a_search_finds_the_keys_that_begin_with_it(first, second, one):
    for key in ("order-1", "order-10", "order-2", "other"):
        for worker in (first, second):
            if worker.lane(key) in worker.lanes:
                worker.put(key)
    named = (await one.found("/api/search?q=order-"))["named"]
    found = [(each["kind"], each["name"]) for each in named]
    assert found == [("key", "order-1"), ("key", "order-2"), ("key", "order-10")]
    assert (await one.found("/api/search?q=order-1"))["named"] == [], "it is a key itself"
    await one.shows("/search?q=orde", 'href="/search?q=order-2">key order-2')
    assert await one.refusal("/api/keys") == (400, "no_prefix")


async def test_a_timeline_and_a_letter_are_downloaded_as_files(worker, browser):
    ident = worker.put_letter("k1")
    for path in (f"/api/dead-letters/{ident}?download=1", "/api/search?q=k1%22%0d%0a&download=1"):
        async with browser.get(path) as response:
            disposition = response.headers["Content-Disposition"]
            assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]+\.json"', disposition)


async def test_times_are_named_from_message_to_commit(worker, browser):
    """The wait in the queue is in them: no record has when an attempt began."""
    there(worker, record("a"))
    page = await browser.shows("/timeline?q=k1", "including time in queues", "<th>Until commit</tr>")
    legend = ("done", "undone", "runs", "waits")
    assert [word for word in legend if f"</svg>{word}</span>" in page] == ["done"]
