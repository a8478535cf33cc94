"""What stands beside a timeline's messages: changes of rows, rows of the outbox, objects of payloads."""

import asyncio
from typing import Any

import msgspec
from test_web_timeline import HOSTILE, MS, there
from test_web_timeline import record as message
from typer.testing import CliRunner
from web_workers import Browser, FakeWorker, Parcel, ParcelSeen, make_application

from streams.cli.main import app as steadfaust
from streams.console.formatting import leaves
from streams.control.base.database_answers import OutboxRowAnswer, OutboxRows
from streams.control.history.row_changes import difference, row_changes
from streams.control.history.timeline import timeline
from streams.model.application import Application
from streams.model.claim import VALUE, claim_of, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import encode_row, json_without_schema
from streams.model.personal import MASK, masked
from streams.model.row_keys import row_key
from streams.testing.blobs import MemoryBlobs
from streams.testing.log import FakeRecord

CHANGELOG = "post-parcels-changelog"


def version(app: Application, note: str | None, *, at: int, key: str = "k1", subkey: str = "") -> FakeRecord:
    """A row of a parcel as its changelog has it, `at` milliseconds after a minute ago."""
    table, name = app.tables["parcels"], key.encode()
    value = None if note is None else encode_row(table.codec, Parcel(note=note))
    place, when = app.layout.partition_of(name), MS - 60_000 + at
    return FakeRecord(table.changelog, place, at, when, row_key(name, subkey.encode()), value, [])


def changes(app: Application, messages: list[FakeRecord], rows: list[FakeRecord]) -> list[Any]:
    return row_changes(app, b"k1", messages, timeline(app, messages), rows)


# -- which step changed what ------------------------------------------------------------------------------


def test_a_change_is_of_the_message_whose_transaction_sent_it(app):
    messages = [message("m1"), message("m2", at=2), message("out", at=10, cause="m1", key="k2")]
    (change,) = changes(app, messages, [version(app, "seen", at=10)])
    assert (change.table, change.step, change.sure, change.is_first) == ("parcels", 1, True, True)
    assert (change.topic, change.offset) == (CHANGELOG, 10)


def test_a_change_sent_alone_is_put_to_the_last_message(app):
    messages = [message("m1"), message("m2", at=20), message("other", at=5, key="k2")]
    first, second = changes(app, messages, [version(app, "a", at=10), version(app, "b", at=30)])
    assert [(each.step, each.sure) for each in (first, second)] == [(1, False), (3, False)]
    (alone,) = changes(app, [], [version(app, "a", at=10)])
    assert (alone.step, alone.sure) == (0, False)


def test_a_message_that_cannot_be_decoded_was_delivered_to_none(app):
    messages = [message("m1"), message("m2", at=2, offset=1, value=b"{oops")]
    (change,) = changes(app, messages, [version(app, "seen", at=10)])
    assert (change.step, change.sure) == (1, False)
    good, poison = timeline(app, messages)
    assert (good.poison, good.handlers) == (False, ["post.note"])
    assert (poison.poison, poison.handlers) == (True, [])


def test_only_differences_and_removals_of_rows_are_shown(app):
    rows = [version(app, note, at=at) for at, note in enumerate(("a", "b", None, "c"), 1)]
    first, second, gone, again = changes(app, [message("m1")], rows)
    assert (first.before, first.after, first.is_first) == (None, {"note": "a"}, True)
    assert (second.before, second.after, second.is_first) == ({"note": "a"}, {"note": "b"}, False)
    assert (gone.removed, gone.after) == (True, None)
    assert (again.was_removed, again.after) == (True, {"note": "c"})


def test_rows_of_a_key_are_compared_with_their_own_versions(app):
    rows = [version(app, note, at=at, subkey=sub) for at, (note, sub) in enumerate(("ax", "by", "cx"), 1)]
    found = changes(app, [], rows)
    assert [(each.subkey, each.before) for each in found] == [("x", None), ("y", None), ("x", {"note": "a"})]


def test_of_another_key_only_the_same_story_is_shown(app):
    messages = [message("m1"), message("m2", at=1, key="k2"), message("out", at=10, cause="m2", key="k1")]
    rows = [version(app, note, at=at, key="k2") for note, at in (("a", 5), ("b", 10), ("c", 20))]
    (change,) = changes(app, messages, rows)
    assert (change.key, change.before, change.after) == ("k2", {"note": "a"}, {"note": "b"})


def test_an_unreadable_version_and_the_one_behind_it_say_why(app):
    broken = version(app, "a", at=1)._replace(value=b"nonsense")
    first, second = changes(app, [], [broken, version(app, "b", at=2)])
    assert first.error
    assert second.error == first.error


def test_a_difference_keeps_names_of_fields_and_places_of_lists():
    before = {"same": 1, "status": "new", "lines": [{"sku": "a", "count": 1}, {"sku": "b"}], "old": 1}
    after = {"same": 1, "status": "paid", "lines": [{"sku": "a", "count": 2}, {"sku": "b"}, "c"], "new": None}
    old, new = difference(before, after)
    assert old == {"status": "new", "lines": {"[0]": {"count": 1}}, "old": 1}
    assert new == {"status": "paid", "lines": {"[0]": {"count": 2}, "[2]": "c"}, "new": None}
    assert list(leaves(old, new)) == [
        ("status", "new", "paid"),
        ("lines[0].count", 1, 2),
        ("lines[2]", None, "c"),
        ("old", 1, None),
        ("new", None, None),
    ]
    entry = {"type": "order.placed", "detail": ""}
    assert list(leaves({"history": {}}, {"history": {"[3]": entry}})) == [("history[3]", None, entry)]


# -- the page ---------------------------------------------------------------------------------------------


async def test_the_timeline_shows_what_a_step_changed(browser, worker):
    app = worker.application
    there(worker, message("m1"), message("m2", at=10, cause="m1"))
    worker.records += [version(app, "weighed", at=-500), version(app, HOSTILE, at=10)]
    _, found = await browser.json("/api/search?q=k1")
    assert [(e["step"], e["before"]) for e in found["changes"]] == [(0, None), (1, {"note": "weighed"})]
    _, page = await browser.page("/timeline?q=k1")
    assert "<script>" not in page
    assert "<del>note: " in page
    assert f"/topics/{CHANGELOG}/{worker.partition('k1')}/10" in page
    assert "1 row change without a message on this page" in page


def test_what_is_personal_is_masked_in_a_difference_too(app):
    rows = [version(app, "Ann", at=1), version(app, "Bob", at=2)]
    first, second = masked(changes(app, [], rows), frozenset({"note"}))
    assert (first.after, second.before, second.after) == ({"note": MASK}, {"note": MASK}, {"note": MASK})


async def test_rows_of_the_outbox_stand_with_their_messages(browser, worker):
    there(worker, message("m1"), message("m2", at=10, cause="m1"))
    row = OutboxRowAnswer(
        id="m1", topic=ParcelSeen.TOPIC, aggregate="parcel k1", written="2027-01-15T07:59:00.000Z",
        published="2027-01-15T07:59:01.000Z", attempts=2, error=HOSTILE, retry_at="",
    )  # fmt: skip
    waits = msgspec.structs.replace(row, id="m9", aggregate="parcel k9", published="", attempts=0, error="")
    worker.outbox = OutboxRows(rows=[row, waits])
    _, found = await browser.json("/api/search?q=k1")
    assert [(each["outbox"] or {}).get("published") for each in found["entries"]] == [row.published, None]
    await browser.shows("/timeline?q=k1", "refused 2 times", hides="<script>")
    await browser.shows("/timeline?q=m9", "not published")
    worker.outbox = OutboxRows(missing="no such host")
    await browser.shows("/timeline?q=k1", "Outbox rows are not known: no such host")


async def test_a_payload_in_the_object_store_is_followed_up():
    blobs = MemoryBlobs()
    plain = make_application()
    claims = ClaimChecks(blobs, bucket="post")
    app = Application(plain.layout, plain.wiring, json_without_schema, claims=claims)
    worker = FakeWorker.with_lanes(0, 1, 2, 3, app=app)
    kept, lost = (claim_of("post", ParcelSeen.TOPIC, name, b"payload") for name in ("kept", "lost"))
    foreign = claim_of("elsewhere", ParcelSeen.TOPIC, "foreign", b"payload")
    await blobs.put(kept.name, b"payload", kept.content_type)
    for at, claim in enumerate((kept, lost, foreign)):
        bare = message(f"m{at}", at=at, value=VALUE, offset=at)
        there(worker, bare._replace(headers=with_claim(bare.headers, claim)))
    async with Browser.of(worker) as browser:
        _, found = await browser.json("/api/search?q=k1")
        claims = [each["claim"] for each in found["entries"]]
        assert [each["there"] for each in claims] == [True, False, None]
        assert (claims[0]["bucket"], claims[0]["name"], claims[0]["size"]) == ("post", kept.name, 7)
        assert "not ours to read" in claims[2]["standing"]
        await browser.shows("/timeline?q=k1", "it is no longer there", "with the current handlers")
        command = CliRunner().invoke
        told = await asyncio.to_thread(command, steadfaust, ["trace", "k1", "--worker", browser.url])
        assert f"{kept.reference} (7 bytes)" in told.stdout
        assert "handlers as they are wired today" in told.stderr
        await browser.shows(f"/topics/{ParcelSeen.TOPIC}/{worker.partition('k1')}/1", "it is no longer there")
