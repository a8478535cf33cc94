"""Dead letters over HTTP: any worker lists, groups and shows all letters, and asks for operations."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from web_workers import NOW, Browser, FakeWorker, ParcelSeen, make_application

from streams.claims.claim import claim_of, with_claim
from streams.dead_letters.row import LetterState
from streams.model.operations import LetterCommand, Operation, decode_operation
from streams.web import jobs as jobs_module
from streams.web import letters as letters_module
from streams.web.letter_answers import Ask

KEYS = [f"k{n}" for n in range(30)]
LETTERS = "/api/dead-letters"
REPLAY = {"operation": "replay", "who": "ann", "why": "mended"}


@pytest.fixture
async def two():
    """Two workers that share the lanes, with a letter for each key; their ids; and a browser of the first."""
    first, second = FakeWorker.with_lanes(0, 1), FakeWorker.with_lanes(2, 3)
    async with Browser.of(first) as one, Browser.of(second) as other:
        first.url, second.url = (str(browser.make_url("")).rstrip("/") for browser in (one, other))
        for worker in (first, second):
            worker.owns({0: first.url, 1: first.url, 2: second.url, 3: second.url})
        ids = {key: owner_of(key, first, second).put_letter(key) for key in KEYS}
        yield first, second, one, ids


def owner_of(key: str, *workers: FakeWorker) -> FakeWorker:
    return next(worker for worker in workers if worker.lane(key) in worker.lanes)


async def pages(browser: Browser, path: str, **query: str) -> list[Any]:
    found, cursor = [], ""
    while True:
        status, page = await browser.json(path, params={**query, "cursor": cursor} if cursor else query)
        assert status == 200, page
        found.append(page)
        cursor = page["next"]
        if not cursor:
            return found


async def listed(browser: Browser, **query: str) -> list[Any]:
    return [letter for page in await pages(browser, LETTERS, **query) for letter in page["letters"]]


async def ended(browser: Browser, job: str) -> Any:
    """Ask until a job has ended; each answer lets it go on."""
    async with asyncio.timeout(10):
        answer: Any = {"state": "running"}
        while answer["state"] == "running":
            _, answer = await browser.json(f"{LETTERS}/jobs/{job}")
    return answer


async def browser_turn(browser: Browser) -> None:
    """Whatever: the job has its turn meanwhile."""
    await browser.json(f"{LETTERS}/jobs")


def asked_of(*workers: FakeWorker) -> list[Operation]:
    return [decode_operation(post.value) for worker in workers for _, post in worker.asked]


@pytest.mark.parametrize("limit", ["1", "7", "500"])
async def test_every_letter_of_all_workers_is_listed_once_page_by_page(two, limit):
    _, _, one, ids = two
    found = await listed(one, limit=limit)
    assert {letter["key"]: letter["id"] for letter in found} == ids
    assert len(found) == len(ids)


async def test_a_page_looks_at_a_bounded_number_of_rows_and_may_be_empty(two, monkeypatch):
    _, _, one, ids = two
    monkeypatch.setattr(letters_module, "MOST_LOOKED_AT", 2)
    found = await pages(one, LETTERS, key="k7")
    assert all(page["looked"] <= 2 for page in found)
    assert [letter["id"] for page in found for letter in page["letters"]] == [ids["k7"]]


@pytest.mark.parametrize("indexed", [True, False])
async def test_letters_are_chosen_by_what_is_known_of_them(two, monkeypatch, indexed):
    first, second, one, _ = two
    owner_of("k1", first, second).put_letter(
        "k1", 1, why="Card declined", handler="pay.take", message_type="paid", state=LetterState.PARKED,
        failed_at_ms=int(NOW * 1000) - 90_000, place="pay.py:3 take",
    )  # fmt: skip
    if indexed:
        await first.index()
        await second.index()
        monkeypatch.setattr(letters_module, "MOST_LOOKED_AT", 31)
    for query in (
        {"handler": "pay.take"}, {"service": "pay"}, {"message_type": "paid"}, {"state": "parked"},
        {"text": "card DECL"}, {"older": "60"}, {"place": "pay.py:3 take"}, {"key": "k1", "older": "1"},
    ):  # fmt: skip
        assert [letter["offset"] for letter in await listed(one, **query)] == [1], query
    assert len(await listed(one, newer="60")) == 30
    assert len(await listed(one, topic=ParcelSeen.TOPIC)) == 31
    assert await listed(one, error_type="KeyError") == []


async def test_letters_of_one_state_are_listed_page_by_page_without_a_look_at_the_others(two):
    first, second, one, ids = two
    for key in KEYS[:9]:
        owner_of(key, first, second).put_letter(key, state=LetterState.PARKED)
    await first.index()
    await second.index()
    found = await pages(one, LETTERS, state="parked", limit="2")
    listed_ids = [letter["id"] for page in found for letter in page["letters"]]
    assert sorted(listed_ids) == sorted(ids[key] for key in KEYS[:9])
    assert sum(page["looked"] for page in found) == 9


async def test_groups_of_all_workers_add_up_to_all_letters(two):
    first, second, one, _ = two
    for n in range(5):
        owner_of(f"k{n}", first, second).put_letter(f"k{n}", 1, error_type="KeyError")
    answers = [group for page in await pages(one, f"{LETTERS}/groups") for group in page["groups"]]
    counts: dict[str, int] = {}
    for group in answers:
        counts[group["error_type"]] = counts.get(group["error_type"], 0) + group["count"]
    assert counts == {"ValueError": 30, "KeyError": 5}
    (status, example) = await one.json(f"{LETTERS}/{answers[0]['example']}")
    assert status == 200
    assert example["letter"]["error_type"] == answers[0]["error_type"]


async def test_a_letter_is_shown_decoded_or_in_hexadecimal_by_whoever_is_asked(two):
    first, second, one, ids = two
    for key, ident in ids.items():
        _, shown = await one.json(f"{LETTERS}/{ident}")
        assert shown["value"] == {"id": key}
        assert shown["headers"] == [["ce_id", f"{key}-0"]]
    broken = owner_of("k3", first, second).put_letter("k3", 5, value=b"\xff{")
    _, shown = await one.json(f"{LETTERS}/{broken}")
    assert (shown["value"], shown["hex"]) == (None, "ff7b")
    assert shown["unreadable"]
    raw = owner_of("k3", first, second).put_letter("k3", 7, error_type="Unreadable", error_message="no UTF-8")
    _, shown = await one.json(f"{LETTERS}/{raw}")
    assert (shown["value"], shown["unreadable"]) == (None, "no UTF-8"), "it may look like a message"
    headers = with_claim([("ce_id", b"1")], claim_of("bucket", "parcel", "1", b"large"))
    elsewhere = owner_of("k3", first, second).put_letter("k3", 6, value=b"", headers=headers)
    _, shown = await one.json(f"{LETTERS}/{elsewhere}")
    assert shown["unreadable"].startswith("its payload is s3://bucket/events/parcel/1-")


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/nonsense!", 400, "bad_letter"),
        ("/__9hYmNk", 400, "bad_letter"),
        ("/AAAAAWFi", 404, "no_letter"),
        ("?cursor=____", 400, "bad_cursor"),
        ("?older=old", 400, "bad_older"),
        ("/jobs/none", 404, "no_job"),
    ],
)
async def test_what_cannot_be_answered_is_said(two, path, status, error):
    _, _, one, _ = two
    found, answer = await one.json(LETTERS + path)
    assert (found, answer["error"]) == (status, error)


async def test_a_lane_that_nobody_has_is_said_and_not_left_out():
    worker = FakeWorker.with_lanes(0)
    async with Browser.of(worker) as browser:
        cursor = (await browser.json(LETTERS))[1]["next"]
        status, answer = await browser.json(LETTERS, params={"cursor": cursor})
        assert (status, answer["error"]) == (503, "lane_not_open")


async def test_letters_that_are_named_are_asked_for_at_once_each_in_its_partition(two):
    first, _, one, ids = two
    status, job = await one.ask(f"{LETTERS}/operations", {**REPLAY, "letters": [ids["k1"], ids["k2"]]})
    assert (status, job["state"], job["asked"]) == (200, "done", 2)
    assert [to.partition for to, _ in first.asked] == [first.partition("k1"), first.partition("k2")]
    asked = asked_of(first)
    assert [operation.letter for operation in asked] == [ids["k1"], ids["k2"]]
    assert {(operation.kind, operation.who, operation.why) for operation in asked} == {
        (LetterCommand.REPLAY, "ann", "mended")
    }


async def test_a_job_asks_for_all_that_match_on_all_workers_and_in_each_keys_order(two):
    first, second, one, _ = two
    for i in range(1, 4):
        owner_of("k4", first, second).put_letter("k4", i)
    owner_of("k5", first, second).put_letter("k5", 9, state=LetterState.PARKED)
    body = {**REPLAY, "matching": {"handler": "post.note"}, "rate": 5000}
    _, started = await one.ask(f"{LETTERS}/operations", body)
    job = await ended(one, started["job"])
    assert (job["state"], job["matched"], job["asked"], job["looked"]) == ("done", 33, 33, 34)
    assert (job["lane"], job["lanes"]) == (4, 4)
    assert sum(group["count"] for group in job["groups"]) == 33
    letters = {letter["id"]: letter for letter in await listed(one)}
    of_k4 = [letters[o.letter]["offset"] for o in asked_of(first) if letters[o.letter]["key"] == "k4"]
    assert of_k4 == [0, 1, 2, 3]


async def test_a_dry_run_counts_by_group_and_asks_for_nothing(two):
    first, _, one, _ = two
    body = {**REPLAY, "matching": {"service": "post"}, "dry_run": True}
    _, started = await one.ask(f"{LETTERS}/operations", body)
    job = await ended(one, started["job"])
    assert (job["matched"], job["asked"], job["groups"][0]["count"]) == (30, 0, 30)
    assert first.asked == []


async def test_a_job_keeps_to_its_rate_can_be_stopped_and_asks_with_the_same_ids_when_it_goes_on(two):
    first, second, one, ids = two
    body = {**REPLAY, "matching": {"service": "post"}, "rate": 5, "job": "mend-1"}
    began = time.monotonic()
    await one.ask(f"{LETTERS}/operations", body)
    async with asyncio.timeout(10):
        while len(first.asked) < 2:
            await browser_turn(one)
    _, stopped = await one.ask(f"{LETTERS}/jobs/mend-1/stop", {})
    assert stopped["state"] == "stopped"
    assert 0 < stopped["asked"] <= 2 + 5 * (time.monotonic() - began)
    assert stopped["asked"] < len(ids)
    before = {post.key: dict(post.headers)["ce_id"] for _, post in first.asked}
    assert len(before) == stopped["asked"]
    async with Browser.of(second) as other:
        await other.ask(f"{LETTERS}/operations", {**body, "rate": 5000})
        job = await ended(other, "mend-1")
    assert job["asked"] == len(ids)
    after = {post.key: dict(post.headers)["ce_id"] for _, post in second.asked}
    assert before.items() <= after.items()
    assert len(set(after.values())) == len(ids)


async def test_a_job_that_runs_is_not_taken_for_another_one_of_its_name(two):
    _, _, one, ids = two
    body = {**REPLAY, "matching": {"service": "post"}, "rate": 5, "job": "mend-1"}
    await one.ask(f"{LETTERS}/operations", body)
    status, same = await one.ask(f"{LETTERS}/operations", body)
    assert (status, same["operation"]) == (200, "replay")
    for other in ({**REPLAY, "letters": [ids["k1"]], "job": "mend-1"}, {**body, "operation": "discard"}):
        status, answer = await one.ask(f"{LETTERS}/operations", other)
        assert (status, answer["error"]) == (409, "job_runs")
    await one.ask(f"{LETTERS}/jobs/mend-1/stop", {})
    status, job = await one.ask(f"{LETTERS}/operations", {**body, "operation": "discard", "rate": 5000})
    assert (status, job["operation"]) == (200, "discard")


async def test_a_job_that_meets_an_error_says_so(two, monkeypatch):
    monkeypatch.setattr(jobs_module, "PATIENCE", 0.0)
    _, second, one, _ = two
    for lane in second.lanes.values():
        lane.store = None
    _, started = await one.ask(
        f"{LETTERS}/operations", {**REPLAY, "matching": {"service": "post"}, "rate": 5000}
    )
    job = await ended(one, started["job"])
    assert job["state"] == "failed"
    assert "lane 2" in job["error"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({**REPLAY, "who": " ", "letters": ["AAAAAWFi"]}, "no_reason"),
        ({**REPLAY, "why": "", "letters": ["AAAAAWFi"]}, "no_reason"),
        (REPLAY, "no_letters"),
        ({**REPLAY, "letters": ["AAAAAWFi"], "matching": {"service": "a"}}, "no_letters"),
        ({**REPLAY, "letters": ["?"]}, "bad_letter"),
        ({**REPLAY, "matching": {"colour": "red"}}, "bad_filter"),
        ({**REPLAY, "matching": {"service": "a"}, "rate": 0}, "bad_rate"),
        ({**REPLAY, "letters": ["AAAAAWFi"] * 501}, "too_many"),
        ({**REPLAY, "operation": "burn", "letters": ["AAAAAWFi"]}, "bad_request"),
        ({**REPLAY, "operation": "edit", "letters": ["AAAAAWFi"], "value": "e30="}, "no_edit"),
    ],
)
async def test_what_is_not_to_be_asked_for_is_refused_before_anything_is_sent(two, body, error):
    first, _, one, _ = two
    status, answer = await one.ask(f"{LETTERS}/operations", body)
    assert (status >= 400, answer["error"]) == (True, error)
    assert first.asked == []


async def test_an_edit_goes_with_its_new_content_where_it_is_enabled():
    worker = FakeWorker.with_lanes(0, app=make_application(lanes=1, edit_dead_letters=True))
    ident = worker.put_letter("k1")
    async with Browser.of(worker) as browser:
        body = {**REPLAY, "operation": "edit", "letters": [ident], "value": "e30="}
        status, _ = await browser.ask(f"{LETTERS}/operations", body)
        assert status == 200
        del body["value"]
        status, _ = await browser.ask(f"{LETTERS}/operations", {**body, "message": {"id": "k1"}})
        assert status == 200
        status, answer = await browser.ask(f"{LETTERS}/operations", {**body, "message": {"id": 1}})
        assert (status, answer["error"]) == (400, "bad_message")
        assert (await browser.json(f"{LETTERS}/jobs"))[1]["jobs"][-1]["state"] == "failed"
    raw, encoded = asked_of(worker)
    assert raw.value == b"{}"
    assert (encoded.value, encoded.fingerprint) == (b'{"id":"k1"}', b"0" * 16)


@pytest.mark.parametrize(
    "headers", [{"Content-Type": "text/plain"}, {"Origin": "http://evil.example"}], ids=["form", "origin"]
)
async def test_a_foreign_page_cannot_ask_for_operations(two, headers):
    first, _, one, ids = two
    status, answer = await one.ask(f"{LETTERS}/operations", {**REPLAY, "letters": [ids["k1"]]}, **headers)
    assert (status, answer["error"]) == (403, "not_json")
    assert first.asked == []


def test_an_ask_has_no_unknown_fields() -> None:
    with pytest.raises(msgspec.ValidationError, match="dryrun"):
        msgspec.json.decode(b'{"operation":"replay","who":"a","why":"b","dryrun":true}', type=Ask)
