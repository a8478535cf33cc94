"""Topics as pages: what there is, what their logs hold, and one record in full."""

import re
from html import unescape
from itertools import product

import msgspec
import pytest
from web_workers import NOW, Browser, FakeWorker, Parcel, ParcelSeen, bearer, make_application

from streams.console.formatting import MOST_DUMPED, dump, wanted_bytes
from streams.control.api import site, writing
from streams.control.base.access import Access
from streams.control.base.asking import PATIENCE
from streams.control.base.windows import ReadPart, page_of
from streams.control.history.topics import declared_topics
from streams.engine.life.positions.declared import declare
from streams.engine.life.state import LaneState
from streams.errors import ClusterUnavailable
from streams.model.codecs import encode_row
from streams.model.envelope import ID
from streams.model.operations import LetterCommand, Operation, encode_operation
from streams.model.row_keys import row_key
from streams.ports import TP, Damaged
from streams.testing.log import FakeRecord
from tests.waiting import BOUND

T = ParcelSeen.TOPIC
MS = int(NOW * 1000)
HOSTILE = "</code></pre><script>alert(1)</script>"


def put(worker: FakeWorker, n: int, key: str = "k", *, topic: str = T, partition: int = 0, **changes) -> None:
    value = b'{"id":"%d"}' % n
    made = FakeRecord(topic, partition, n, MS + n, key.encode(), value, [(ID, b"m%d" % n)])
    worker.records.append(made._replace(**changes))


def places(page: str) -> list[str]:
    return re.findall(r">(\d+@\d+)</a>", page)


def link(page: str, words: str) -> str:
    found = re.search(rf'href="([^"]+)">{words}</a>', page)
    return unescape(found[1]) if found else ""


def test_the_list_has_every_topic_that_is_declared():
    app = make_application()
    assert set(declared_topics(app)) == {spec.name for spec in declare(app, replication=1)}


async def test_topics_are_listed_with_what_they_hold(worker, browser):
    for n in range(3):
        put(worker, n)
    worker.open_from[TP(T, 0)] = 2
    worker.missing.add("post-operations")
    _, answer = await browser.json("/api/topics")
    by_name = {each["name"]: each for each in answer["topics"]}
    seen = by_name[T]
    assert (seen["kind"], seen["partitions"], seen["offsets"], seen["open"]) == ("messages", 8, 3, 1)
    assert seen["about"] == "ParcelSeen, handled by post.note"
    assert by_name["post-parcels-changelog"]["kept"] == "the newest of each key"
    assert by_name[f"{T}.dlq"]["about"] == f"of {T}"
    assert not by_name["post-operations"]["exists"]
    await browser.shows("/topics", f'href="/topics/{T}"', "missing in the cluster")


async def test_the_newest_come_first_and_pages_lead_to_both_sides(worker, browser):
    for n in range(10):
        put(worker, n, partition=n % 2)
    _, page = await browser.page(f"/topics/{T}?limit=4")
    assert places(page) == ["1@9", "0@8", "1@7", "0@6"]
    assert 'hx-trigger="every 2s"' in page
    assert not link(page, "Newer")
    _, page = await browser.page(link(page, "Older"))
    assert places(page) == ["1@5", "0@4", "1@3", "0@2"]
    assert "hx-trigger" not in page
    _, oldest = await browser.page(link(page, "Older"))
    assert places(oldest) == ["1@1", "0@0"]
    assert not link(oldest, "Older")
    _, page = await browser.page(link(page, "Newer"))
    assert places(page) == ["0@6", "1@7", "0@8", "1@9"]
    assert not link(page, "Newer")


async def test_a_page_begins_at_an_offset_time_or_key(worker, browser):
    key, path = "k7", f"/topics/{T}"
    own = worker.partition(key)
    for n in range(6):
        put(worker, n, key if n % 2 else "other", partition=own)
    at = "2027-01-15T08:00:00.004"  # NOW and four milliseconds, UTC
    for query, offsets in (
        (f"partition={own}&offset=2&limit=2", [2, 3]),
        (f"time={at}", [4, 5]),
        ("oldest=1&limit=1", [0]),
        (f"key={key}", [5, 3, 1]),
    ):
        _, page = await browser.page(f"{path}?{query}")
        assert places(page) == [f"{own}@{offset}" for offset in offsets], query
    assert worker.windows[-1].partitions == (TP(T, own),)


async def test_a_topic_says_who_takes_it_and_shows_chosen_fields(worker, browser):
    put(worker, 1, value=b'{"id":"k1"}')
    shown = (
        f"{T}: 0 messages per second, lag 0",
        'taken by <a href="/handlers/post.note">',
        "<span>id</span> k1",
    )
    await browser.shows(f"/topics/{T}", *shown)
    await browser.shows(f"/topics/{T}?fields=more", hides="<span>id</span>")


async def test_what_an_open_transaction_hides_is_said(worker, browser):
    for n in range(5):
        put(worker, n)
    worker.open_from[TP(T, 0)] = 3
    _, page = await browser.page(f"/topics/{T}")
    assert places(page) == ["0@2", "0@1", "0@0"]
    assert "a transaction is open at offset 3" in page
    status, page = await browser.page(f"/topics/{T}/0/4")
    assert (status, "once that is committed" in page) == (404, True)


async def test_empty_topics_and_places_outside_of_a_log_are_explained(worker, browser):
    await browser.shows(f"/topics/{T}", "New records appear here.")
    for n in (5, 6, 9):
        put(worker, n)
    for offset, why in ((99, "ends at offset 10, before 99"), (1, "begins at offset 5")):
        await browser.shows(f"/topics/{T}?partition=0&offset={offset}", why)
    for at, why in ((1, "the log begins at 5"), (10, "the log ends at 10"), (7, "the next record is at 9")):
        status, page = await browser.page(f"/topics/{T}/0/{at}")
        assert (status, why in page) == (404, True), at


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("limit=0", "bad_limit"),
        ("limit=101", "bad_limit"),
        ("limit=many", "bad_limit"),
        ("partition=8", "bad_partition"),
        ("partition=-1", "bad_partition"),
        ("offset=3", "no_partition"),
        ("partition=0&offset=x", "bad_offset"),
        ("partition=0&offset=" + "9" * 5000, "bad_offset"),
        ("time=yesterday", "bad_time"),
        ("before=x", "bad_cursor"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_reason(browser, query, error):
    assert await browser.refusal(f"/api/topics/{T}?{query}") == (400, error)


async def test_topics_of_others_are_not_read(worker, browser):
    assert await browser.refusal("/api/topics/somebody.elses.v1") == (404, "no_topic")
    worker.missing.add(T)
    assert "creates it" in (await browser.json(f"/api/topics/{T}"))[1]["detail"]
    assert worker.windows == []


async def test_a_record_is_shown_in_full_and_inert(worker, browser):
    put(worker, 3, "k<3>", value=b'{"id":"%s"}' % HOSTILE.encode(), headers=[(ID, HOSTILE.encode())])
    for path in (f"/topics/{T}", f"/topics/{T}/0/3"):
        page = await browser.shows(path, "&lt;script&gt;alert(1)", hides="<script>alert")
    assert "/timeline?q=k%3C3%3E" in page
    assert "000000  7b 22 69 64" in page
    _, answer = await browser.json(f"/api/topics/{T}/0/3")
    assert answer["record"]["value"] == {"id": HOSTILE}
    assert bytes.fromhex(answer["record"]["hex"]).startswith(b'{"id":"<')
    assert (answer["begin"], answer["stable"]) == (3, 4)


async def test_what_cannot_be_decoded_is_shown_with_the_reason(worker, browser):
    put(worker, 0, value=b"\xff\x00no json")
    worker.records.append(Damaged(T, 0, 1, MS, None, b"\x07", (), "record", "its length is wrong"))
    put(worker, 2, value=None)
    _, answer = await browser.json(f"/api/topics/{T}")
    gone, damaged, undecodable = answer["records"]
    assert (gone["unreadable"], gone["hex"]) == ("it has no value", "")
    assert (damaged["unreadable"], damaged["hex"]) == ("its length is wrong", "07")
    assert undecodable["hex"] == b"\xff\x00no json".hex()
    assert undecodable["unreadable"]
    for offset in range(3):
        assert (await browser.page(f"/topics/{T}/0/{offset}"))[0] == 200


async def test_records_of_the_applications_other_topics_are_decoded(worker, browser):
    app, layout = worker.application, worker.application.layout
    changelog = layout.changelog("parcels")
    value = encode_row(app.tables["parcels"].codec, Parcel(note="light"))
    put(worker, 0, topic=changelog, key="", value=value)
    worker.records[-1] = worker.records[-1]._replace(key=row_key(b"p1", b"s"))
    asked = Operation(kind=LetterCommand.DISCARD, letter="x", who="ann", why="old", at_ms=1)
    put(worker, 0, topic=layout.operations, value=encode_operation(asked))
    put(worker, 0, topic=layout.announcements, value=b"not json, but text")
    put(worker, 0, topic=layout.changelog("lane"), value=b"\x01")
    worker.put_letter("k1")
    letter = next(iter(worker.lanes[worker.lane("k1")].store.scan("dead_letters")))[1]
    put(worker, 0, topic=layout.changelog("dead_letters"), value=letter)

    async def shown(topic):
        return (await browser.json(f"/api/topics/{topic}/0/0"))[1]["record"]

    row = await shown(changelog)
    assert (row["key"], row["subkey"], row["lookup"], row["value"]) == ("p1", "s", "p1", {"note": "light"})
    assert (await shown(layout.operations))["value"]["who"] == "ann"
    assert (await shown(layout.announcements))["value"] == "not json, but text"
    assert "for itself" in (await shown(layout.changelog("lane")))["unreadable"]
    assert (await shown(layout.changelog("dead_letters")))["value"]["handler"] == "post.note"


async def test_viewers_see_nothing_personal_in_any_topic(worker, monkeypatch):
    """Not in a message, a row, a row that does not decode, an edited message, nor as bytes."""
    monkeypatch.setattr(writing, "personal_fields", lambda _: frozenset({"note", "id"}))
    layout = worker.application.layout
    row = encode_row(worker.application.tables["parcels"].codec, Parcel(note="for Ada"))
    edited = {"kind": "edit", "letter": "x", "value": "QWRh", "headers": [["n", "QWRh"]], "why": "w"}
    put(worker, 0, value=b'{"id":"Ada"}')
    put(worker, 0, topic=layout.changelog("parcels"), value=row)
    put(worker, 0, topic=layout.changelog("parcels"), partition=1, value=row[:-2])
    put(worker, 0, topic=layout.operations, value=msgspec.json.encode(edited))
    paths = [f"/{each.topic}{rest}" for each in worker.records for rest in ("", f"/{each.partition}/0")]
    asked = [(path, f"{api}/topics{path}") for path in paths for api in ("", "/api")]
    async with Browser.of(worker, Access("operator-token", "viewer-token", login=True)) as browser:
        for (path, at), (token, sees) in product(asked, (("operator-token", True), ("viewer-token", False))):
            async with browser.get(at, headers=bearer(token)) as response:
                text = await response.text()
            assert response.status == 200
            leaks = [each for each in ("Ada", "QWRh", b"Ada".hex(), "41 64 61") if each in text]
            assert sees or not leaks, (at, leaks)
            assert sees is ("(masked)" not in text) or "operations" in at or path.endswith("/1/0"), at


def test_pages_of_several_partitions_join_without_gaps():
    def part(partition, *times):
        records = [FakeRecord("t", partition, n, at, None, b"", ()) for n, at in enumerate(times)]
        return TP("t", partition), ReadPart(records, 0, len(records))

    parts = dict([part(0, 1, 9, 3), part(1, 2, 4), part(2)])
    newest, spans = page_of(parts, limit=3, backwards=True)
    assert [(each.partition, each.offset) for each in newest] == [(1, 1), (0, 2), (0, 1)]
    assert spans == {TP("t", 0): (1, 3), TP("t", 1): (1, 2), TP("t", 2): (0, 0)}
    oldest, spans = page_of(parts, limit=3, backwards=False)
    assert [(each.partition, each.offset) for each in oldest] == [(0, 0), (1, 0), (1, 1)]
    assert spans == {TP("t", 0): (0, 1), TP("t", 1): (0, 2), TP("t", 2): (0, 0)}


def test_bytes_are_dumped_sixteen_a_line():
    assert dump(b"<b>0123456789abcdef\x00".hex()).splitlines() == [
        "000000  3c 62 3e 30 31 32 33 34 35 36 37 38 39 61 62 63  <b>0123456789abc",
        "000010  64 65 66 00                                      def.",
    ]
    assert dump("") == ""


@pytest.mark.parametrize(
    ("error", "count", "words"),
    [
        ("(EOFError: Expected 13 bytes, read 2)", 3, "3 bytes, but its schema needs 14"),
        ("(ValueError: no such branch)", 1, "1 byte, not valid for its schema"),
    ],
)
def test_how_short_a_value_is(error, count, words):
    assert wanted_bytes(error, count) == words
    assert dump("00" * (MOST_DUMPED + 1)).endswith("... 1 more bytes")


# -- while Kafka is away, and after a topic has gone -------------------------------------------------------


async def test_topics_are_shown_as_they_stood_while_kafka_is_away(worker, browser):
    worker.records = [FakeRecord(ParcelSeen.TOPIC, 0, 5, 1, b"k", b"{}", [])]
    before = (await browser.json("/api/topics"))[1]
    worker.away = "no broker answered"
    status, now = await browser.json("/api/topics")
    assert (status, now["topics"]) == (200, before["topics"])
    assert now["note"].startswith("Kafka does not answer. These are the topics as they were at 2027-")
    assert "no broker answered" in now["note"]
    await browser.shows("/topics", "These are the topics as they were at", ParcelSeen.TOPIC)


async def test_topics_have_their_names_where_nothing_else_is_known(worker, browser):
    worker.away = "no broker answered"
    status, answer = await browser.json("/api/topics")
    assert status == 200
    assert ParcelSeen.TOPIC in {each["name"] for each in answer["topics"]}
    assert "only the names are known" in answer["note"]
    await browser.shows(
        "/topics", 'data-label="Offsets" class="num">-', hides='data-label="Offsets" class="num">0'
    )


async def test_other_topics_are_shown_after_one_was_deleted(worker, browser):
    worker.deleted = {ParcelSeen.TOPIC}
    status, answer = await browser.json("/api/topics")
    assert status == 200
    assert [each["name"] for each in answer["topics"] if not each["exists"]] == [ParcelSeen.TOPIC]


async def test_who_has_patience_waits_for_kafka_too(worker, browser, monkeypatch):
    errors = iter([ClusterUnavailable("no broker answered")] * 2)

    def reach() -> None:
        for error in errors:
            raise error

    monkeypatch.setattr(worker, "_reach", reach)
    worker.patience = BOUND
    assert await browser.refusal(f"/api/topics/{ParcelSeen.TOPIC}") == (503, "not_now")
    status, _ = await browser.json(f"/api/topics/{ParcelSeen.TOPIC}", headers={PATIENCE: str(BOUND)})
    assert (status, next(errors, None)) == (200, None)


async def test_a_topic_that_was_deleted_is_not_found(worker, browser):
    worker.deleted = {ParcelSeen.TOPIC}
    assert await browser.refusal(f"/api/topics/{ParcelSeen.TOPIC}") == (404, "no_topic")


async def test_a_read_does_not_wait_long_for_a_lane(worker, browser, monkeypatch):
    monkeypatch.setattr(site, "READ", 0.05)
    worker.patience = 100 * BOUND
    for lane in worker.lanes.values():
        lane.state = LaneState.OPENING
    for path in ("/api/dead-letters", "/api/tables/parcels/rows?key=k1", "/api/sagas"):
        status, answer = await browser.json(path)
        assert status in (200, 503)
        assert "is opening" in str(answer)
