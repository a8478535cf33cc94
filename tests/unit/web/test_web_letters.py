"""Dead letters on pages: lists, one letter, and its message as a form."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner
from web_workers import NOW, Browser, FakeWorker, ParcelSeen, make_application

from agents.messages import StockReserved
from streams.cli.main import app as steadfaust
from streams.console.message_fields import MOST_CHARACTERS, PREFIX, fields_of, skeleton, with_fields
from streams.control.letters import jobs as jobs_module
from streams.control.letters import letters as letters_module
from streams.control.letters.letter_answers import Ask
from streams.engine.waiting.dead_letters.row import LetterState
from streams.model.claim import claim_of, with_claim
from streams.model.operations import LetterCommand
from tests.waiting import eventually_async

pytestmark = pytest.mark.promise("dead-letter-desk")

KEYS = [f"k{n}" for n in range(30)]
LETTERS = "/api/dead-letters"
ONE_LETTER = ["AAAAAWFi"]
REPLAY = {"operation": "replay", "who": "ann", "why": "mended"}


@pytest.fixture
def ids(put):
    return {key: put(key) for key in KEYS}


async def listed(browser: Browser, **query: str) -> list[Any]:
    return [letter for page in await browser.pages(LETTERS, **query) for letter in page["letters"]]


async def start(browser: Browser, **more: Any) -> tuple[int, Any]:
    """Start a job for all letters, as fast as it can unless told otherwise."""
    body = {**REPLAY, "matching": {"service": "post"}, "rate": 5000, **more}
    return await browser.ask(f"{LETTERS}/operations", body)


@pytest.mark.parametrize("limit", ["1", "7", "500"])
async def test_every_letter_of_all_workers_is_listed_once(one, ids, limit):
    found = await listed(one, limit=limit)
    assert {letter["key"]: letter["id"] for letter in found} == ids
    assert len(found) == len(ids)


async def test_a_page_looks_at_a_bounded_number_of_rows(one, ids, monkeypatch):
    monkeypatch.setattr(letters_module, "MOST_LOOKED_AT", 2)
    found = await one.pages(LETTERS, key="k7")
    assert all(page["looked"] <= 2 for page in found)
    assert [letter["id"] for page in found for letter in page["letters"]] == [ids["k7"]]


@pytest.mark.parametrize("indexed", [True, False])
async def test_letters_are_chosen_by_what_is_known_of_them(both, one, put, ids, monkeypatch, indexed):
    put(
        "k1", 1, why="Card declined", handler="pay.take", message_type="paid", state=LetterState.PARKED,
        failed_at_ms=int(NOW * 1000) - 90_000, place="pay.py:3 take",
    )  # fmt: skip
    if indexed:
        for worker in both:
            await worker.index()
        monkeypatch.setattr(letters_module, "MOST_LOOKED_AT", 31)
    for query in (
        {"handler": "pay.take"}, {"service": "pay"}, {"message_type": "paid"}, {"state": "parked"},
        {"text": "card DECL"}, {"older": "60"}, {"place": "pay.py:3 take"}, {"key": "k1", "older": "1"},
    ):  # fmt: skip
        assert [letter["offset"] for letter in await listed(one, **query)] == [1], query
    assert len(await listed(one, newer="60")) == 30
    assert len(await listed(one, topic=ParcelSeen.TOPIC)) == 31
    assert await listed(one, error_type="KeyError") == []


async def test_letters_of_a_state_are_listed_without_the_others(both, one, put, ids):
    for key in KEYS[:9]:
        put(key, state=LetterState.PARKED)
    for worker in both:
        await worker.index()
    found = await one.pages(LETTERS, state="parked", limit="2")
    listed_ids = [letter["id"] for page in found for letter in page["letters"]]
    assert sorted(listed_ids) == sorted(ids[key] for key in KEYS[:9])
    assert sum(page["looked"] for page in found) == 9


async def test_groups_of_all_workers_add_up_to_all_letters(one, put, ids):
    for n in range(5):
        put(f"k{n}", 1, error_type="KeyError", replays=1, failed_at_ms=int(NOW * 1000) - 3_700_000 * (n % 2))
    put("k9", 1, error_type="KeyError", state=LetterState.REPLAYING)
    answers = [group for page in await one.pages(f"{LETTERS}/groups") for group in page["groups"]]
    counts = Counter[str]()
    for group in answers:
        counts[group["error_type"]] += group["count"]
        if group["error_type"] == "KeyError":
            counts.update({name: group[name] for name in ("last_hour", "failed_again", "replaying")})
    assert counts == {"ValueError": 30, "KeyError": 6, "last_hour": 4, "failed_again": 5, "replaying": 1}
    example = await one.found(f"{LETTERS}/{answers[0]['example']}")
    assert example["letter"]["error_type"] == answers[0]["error_type"]


async def test_a_letter_is_shown_decoded_by_whoever_is_asked(one, ids):
    for key, ident in ids.items():
        _, shown = await one.json(f"{LETTERS}/{ident}")
        assert shown["value"] == {"id": key}
        assert shown["headers"] == [["ce_id", f"{key}-0"]]


async def test_a_letter_that_cannot_be_decoded_says_why(one, put):
    async def shown(**changes: Any) -> Any:
        return (await one.json(f"{LETTERS}/{put('k3', 5, **changes)}"))[1]

    broken = await shown(value=b"\xff{")
    assert (broken["value"], broken["hex"]) == (None, "ff7b")
    assert broken["unreadable"]
    raw = await shown(error_type="Unreadable", error_message="no UTF-8")
    assert (raw["value"], raw["unreadable"]) == (None, "no UTF-8"), "it may look like a message"
    headers = with_claim([("ce_id", b"1")], claim_of("bucket", "parcel", "1", b"large"))
    elsewhere = await shown(value=b"", headers=headers)
    assert elsewhere["unreadable"].startswith("its payload is s3://bucket/events/parcel/1-")


async def test_a_letters_object_is_shown_by_either_worker(first, one, put):
    claim = claim_of("bucket", "parcel", "1", b"large")
    for key in KEYS[:9]:  # of lanes of both
        ident = put(key, 5, value=b"", headers=with_claim([("ce_id", b"1")], claim))
        found = (await one.found(f"{LETTERS}/{ident}"))["claim"]
        assert (found["bucket"], found["name"], found["size"]) == ("bucket", claim.name, 5)
        assert "no object store" in found["standing"], "only the worker that was asked has looked"
        await one.shows(f"/dead-letters/{ident}", claim.name, "5 bytes", hides="cannot be read as it is")
    words = ["dlq", "show", ident, "--worker", first.url]
    result = await asyncio.to_thread(CliRunner().invoke, steadfaust, words)
    assert f"payload        {claim.reference}, 5 bytes of application/avro; this" in result.output


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/nonsense!", 400, "bad_letter"), ("/__9hYmNk", 400, "bad_letter"), ("/AAAAAWFi", 404, "no_letter"),
        ("?cursor=____", 400, "bad_cursor"), ("?older=old", 400, "bad_older"), ("/jobs/none", 404, "no_job"),
    ],
)  # fmt: skip
async def test_what_cannot_be_answered_is_said(browser, path, status, error):
    assert await browser.refusal(LETTERS + path) == (status, error)


async def test_a_lane_that_nobody_has_is_said():
    async with Browser.of(FakeWorker.with_lanes(0)) as browser:
        cursor = (await browser.json(LETTERS))[1]["next"]
        assert await browser.refusal(LETTERS, params={"cursor": cursor}) == (503, "lane_not_open")


async def test_named_letters_are_asked_for_each_in_its_partition(first, one, ids):
    status, job = await one.ask(f"{LETTERS}/operations", {**REPLAY, "letters": [ids["k1"], ids["k2"]]})
    assert (status, job["state"], job["asked"]) == (200, "done", 2)
    assert [to.partition for to, _ in first.asked] == [first.partition("k1"), first.partition("k2")]
    asked = first.operations
    assert [operation.letter for operation in asked] == [ids["k1"], ids["k2"]]
    assert {(operation.kind, operation.who, operation.why) for operation in asked} == {
        (LetterCommand.REPLAY, "ann", "mended")
    }


async def test_a_job_asks_in_the_order_of_each_key(first, one, put, ids):
    for i in range(1, 4):
        put("k4", i)
    put("k5", 9, state=LetterState.PARKED)
    _, started = await start(one, matching={"handler": "post.note"})
    job = await one.ended(f"{LETTERS}/jobs/{started['job']}")
    assert (job["state"], job["matched"], job["asked"], job["looked"]) == ("done", 33, 33, 34)
    assert (job["lane"], job["lanes"]) == (4, 4)
    assert sum(group["count"] for group in job["groups"]) == 33
    letters = {letter["id"]: letter for letter in await listed(one)}
    of_k4 = [letters[o.letter]["offset"] for o in first.operations if letters[o.letter]["key"] == "k4"]
    assert of_k4 == [0, 1, 2, 3]


async def test_a_dry_run_counts_by_group_and_asks_for_nothing(first, one, ids):
    _, started = await start(one, dry_run=True)
    job = await one.ended(f"{LETTERS}/jobs/{started['job']}")
    assert (job["matched"], job["asked"], job["groups"][0]["count"]) == (30, 0, 30)
    assert first.asked == []


class Pace:
    """A clock of jobs that goes on when one pauses; it holds whoever pauses for the second time."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if len(self.pauses) == 2:
            await asyncio.Event().wait()

    async def held(self) -> None:
        await eventually_async(lambda: len(self.pauses) == 2, "the job pauses twice", every=0)


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    pace = Pace()
    instead = {"sleep": pace.sleep, "get_running_loop": lambda: pace}
    monkeypatch.setattr(jobs_module, "asyncio", SimpleNamespace(**{**vars(asyncio), **instead}))
    return pace


async def test_a_stopped_job_goes_on_elsewhere_with_the_same_ids(first, second, one, other, ids, pace):
    await start(one, rate=5, job="mend-1")
    await pace.held()
    assert pace.pauses == pytest.approx([0.2, 0.2])
    _, stopped = await one.ask(f"{LETTERS}/jobs/mend-1/stop", {})
    assert (stopped["state"], stopped["asked"]) == ("stopped", 2)
    before = {post.key: dict(post.headers)["ce_id"] for _, post in first.asked}
    assert len(before) == 2
    await start(other, job="mend-1")
    assert (await other.ended(f"{LETTERS}/jobs/mend-1"))["asked"] == len(ids)
    after = {post.key: dict(post.headers)["ce_id"] for _, post in second.asked}
    assert before.items() <= after.items()
    assert len(set(after.values())) == len(ids)


async def test_a_running_job_is_not_taken_for_another(one, ids, pace):
    await start(one, rate=5, job="mend-1")
    await pace.held()
    status, same = await start(one, rate=5, job="mend-1")
    assert (status, same["operation"]) == (200, "replay")
    for other in ({"letters": [ids["k1"]], "matching": {}, "rate": 200}, {"rate": 5, "operation": "discard"}):
        status, answer = await start(one, job="mend-1", **other)
        assert (status, answer["error"]) == (409, "job_runs")
    await one.ask(f"{LETTERS}/jobs/mend-1/stop", {})
    status, job = await start(one, job="mend-1", operation="discard")
    assert (status, job["operation"]) == (200, "discard")


async def test_a_job_that_meets_an_error_says_so(second, one, ids, monkeypatch):
    monkeypatch.setattr(jobs_module, "PATIENCE", 0.0)
    for lane in second.lanes.values():
        lane.store = None
    _, started = await start(one)
    job = await one.ended(f"{LETTERS}/jobs/{started['job']}")
    assert job["state"] == "failed"
    assert "lane 2" in job["error"]


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"who": " ", "letters": ONE_LETTER}, (400, "no_reason")),
        ({"why": "", "letters": ONE_LETTER}, (400, "no_reason")),
        ({}, (400, "no_letters")),
        ({"letters": ONE_LETTER, "matching": {"service": "a"}}, (400, "no_letters")),
        ({"letters": ["?"]}, (400, "bad_letter")),
        ({"matching": {"colour": "red"}}, (400, "bad_filter")),
        ({"matching": {"service": "a"}, "rate": 0}, (400, "bad_rate")),
        ({"letters": ONE_LETTER * 501}, (400, "too_many")),
        ({"operation": "burn", "letters": ONE_LETTER}, (400, "bad_request")),
        ({"operation": "edit", "letters": ONE_LETTER, "value": "e30="}, (403, "no_edit")),
        ({"letters": ONE_LETTER, "headers": {"Content-Type": "text/plain"}}, (403, "not_json")),
        ({"letters": ONE_LETTER, "headers": {"Origin": "http://evil.example"}}, (403, "not_json")),
    ],
)
async def test_what_is_refused_sends_nothing(worker, browser, body, refused):
    given = {**REPLAY, **body}
    status, answer = await browser.ask(f"{LETTERS}/operations", given, **given.pop("headers", {}))
    assert (status, answer["error"]) == refused
    assert worker.asked == []


async def test_an_edit_goes_with_its_content_where_enabled():
    worker = FakeWorker.with_lanes(0, app=make_application(lanes=1, edit_dead_letters=True))
    body = {**REPLAY, "operation": "edit", "letters": [worker.put_letter("k1")]}
    async with Browser.of(worker) as browser:
        for content in ({"value": "e30="}, {"message": {"id": "k1"}}):
            assert (await browser.ask(f"{LETTERS}/operations", {**body, **content}))[0] == 200
        status, answer = await browser.ask(f"{LETTERS}/operations", {**body, "message": {"id": 1}})
        assert (status, answer["error"]) == (400, "bad_message")
        assert (await browser.json(f"{LETTERS}/jobs"))[1]["jobs"][-1]["state"] == "failed"
    raw, encoded = worker.operations
    assert raw.value == b"{}"
    assert (encoded.value, encoded.fingerprint) == (b'{"id":"k1"}', b"0" * 16)


def test_an_ask_has_no_unknown_fields():
    with pytest.raises(msgspec.ValidationError, match="dryrun"):
        msgspec.json.decode(b'{"operation":"replay","who":"a","why":"b","dryrun":true}', type=Ask)


VALUE = {"order": {"id": "o-1", "lines": [{"units": 2, "price": 1.5}], "gift": True, "note": None}}


def test_each_field_keeps_its_kind():
    found = [(each.name, each.text, each.kind) for each in fields_of(VALUE, None)]
    assert found == [
        ("order.id", "o-1", "string"),
        ("order.lines[0].units", "2", "integer"),
        ("order.lines[0].price", "1.5", "number"),
        ("order.gift", "true", "boolean"),
    ]
    given = {"order.id": "7", "order.lines[0].units": " 3", "order.gift": "false"}
    edited = with_fields(VALUE, {PREFIX + name: text for name, text in given.items()})
    assert edited == {
        "order": {"id": "7", "lines": [{"units": 3, "price": 1.5}], "gift": False, "note": None}
    }


@pytest.mark.parametrize("text", ["", "two", "1.5", "true", '"2"'])
def test_a_text_of_another_kind_is_refused(text):
    with pytest.raises(ValueError, match=r"lines\[0\].units"):
        with_fields(VALUE, {f"{PREFIX}order.lines[0].units": text})


def test_what_no_input_can_hold_is_edited_as_json():
    assert fields_of({"note": "two\nlines"}, None) == []
    assert fields_of({"note": "x" * (MOST_CHARACTERS + 1)}, None) == []


def test_a_skeleton_has_all_fields_of_the_class():
    empty = skeleton(StockReserved)
    assert empty["order"]["order_id"] == ""
    assert empty["order"]["total_cents"] == 0
    assert "order.total_cents" in [each.name for each in fields_of(empty, StockReserved)]
    assert skeleton(None) is None
    about = {each.name: each.about for each in fields_of(empty, StockReserved)}
    assert about["order.total_cents"] == "the price of all of it in cents; 0 when it costs nothing."
