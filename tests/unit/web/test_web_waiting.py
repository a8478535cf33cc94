"""What waits, over HTTP: the oldest first over all lanes, with its cause now, a bounded part at a time."""

from typing import Any

import pytest
from msgspec.structs import replace
from web_workers import MANY_KEYS, NOW, Browser, FakeWorker, owner_of

from streams.console.waiting import WaitingShown
from streams.control.waiting import waiting as waiting_module
from streams.control.waiting.waiting_answers import WaitingPage
from streams.engine.staging.keys import prefix_of
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.queue import (
    Reason,
    append,
    begin,
    message_of,
    queue_name,
    replayed,
    set_message,
    set_queue,
)
from streams.model.envelope import FINGERPRINT, rfc3339
from streams.model.operations import HandlerPause, PauseState
from streams.model.policy.breaker import BreakerPolicy
from streams.testing.log import FakeRecord

WAITING = "/api/waiting"
NOTE = "post.note"


pytestmark = pytest.mark.usefixtures("gated")


async def listed(browser: Browser, **query: str) -> list[Any]:
    pages = await browser.pages(WAITING, **query)
    return [each for page in pages for each in page["waiting"]]


async def only(browser: Browser, **query: str) -> Any:
    (found,) = await listed(browser, **query)
    return found


def gate_of(worker: FakeWorker, key: str) -> HandlerGate:
    return worker.lanes[worker.lane(key)].gates[NOTE]


def pause(worker: FakeWorker, key: str) -> None:
    found = HandlerPause(PauseState.PAUSED, "ann", "strike", int(NOW * 1000))
    gate_of(worker, key).set_pause(prefix_of(worker.partition(key)), found)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("limit", ["1", "7", "500"])
async def test_the_oldest_of_all_lanes_comes_first(both, one, indexed, limit):
    for age, key in enumerate(MANY_KEYS[:30]):
        owner_of(key, *both).wait(key, since=NOW - (age * 7) % 30)
    for worker in both:
        if indexed:
            await worker.index()
    found = await listed(one, limit=limit)
    assert [each["waited"] for each in found] == sorted(range(30), reverse=True)
    assert {each["key"] for each in found} == set(MANY_KEYS[:30])


async def test_a_request_looks_at_a_bounded_part_of_each_lane(worker, browser, monkeypatch):
    monkeypatch.setattr(waiting_module, "MOST_LOOKED_AT", 5)
    for age, key in enumerate(MANY_KEYS):
        worker.wait(key, since=NOW - age)
    answer = await browser.found(WAITING)
    assert (answer["looked"], sorted(answer["unsorted"])) == (20, ["0", "1", "2", "3"]), "without an index"
    await worker.index()
    pages = await browser.pages(WAITING, limit="500")
    assert all(page["looked"] <= 4 * 6 for page in pages)
    assert [each["waited"] for page in pages for each in page["waiting"]] == list(range(99, -1, -1))


async def test_filters_choose_by_handler_and_by_the_cause_now(worker, browser):
    for lane in worker.lanes:
        worker.gate(lane)
    for key in MANY_KEYS[:20]:
        worker.wait(key, reason=Reason.RETRY)
    await worker.index()
    pause(worker, MANY_KEYS[3])
    held = {key for key in MANY_KEYS[:20] if worker.partition(key) == worker.partition(MANY_KEYS[3])}
    assert {each["key"] for each in await listed(browser, reason="paused")} == held
    assert {each["key"] for each in await listed(browser, reason="retry")} == set(MANY_KEYS[:20]) - held
    assert len(await listed(browser, handler=NOTE)) == 20
    assert await listed(browser, handler="post.other") == []
    assert await browser.refusal(WAITING, params={"reason": "odd"}) == (400, "bad_reason")
    assert await browser.refusal(WAITING, params={"cursor": "AAAA"}) == (400, "bad_cursor")


def keep(worker: FakeWorker, key: str, queue: Any, *messages: Any, handler: bytes = b"post.note") -> None:
    name = queue_name(handler, key.encode())
    rows = [set_message(name, number, message) for number, message in messages]
    worker.change(key, set_queue(name, queue), *rows)


def message(
    worker: FakeWorker, key: str, offset: int = 0, topic: str = "post.parcel.seen.v1", **headers: str
):
    given = [("ce_id", f"m-{offset}".encode()), *((name, text.encode()) for name, text in headers.items())]
    record = FakeRecord(topic, worker.partition(key), offset, 1, key.encode(), b"{}", given)
    return message_of(record, int((NOW - 60) * 1000))


def waits(reason: Reason, **changes: Any) -> Any:
    return replace(begin(reason, due_ms=0, attempts=0, size=1), **changes)


async def test_each_cause_is_said_with_what_ends_it(first, one):
    key = first.key_in(0, 1)
    gate = gate_of(first, key)
    schema = message(first, key, **{FINGERPRINT: "00ff"})
    other = message(first, key, topic="post.gone.v1")
    plain = message(first, key)
    in_a_minute = int((NOW + 60) * 1000)
    for queue, found, reason, why, until in (
        (
            waits(Reason.RETRY, due_ms=in_a_minute, attempts=2, error="TimeoutError: gateway"),
            plain,
            "retry",
            "attempt 2 of 6 failed: TimeoutError: gateway",
            "it is tried again",
        ),
        (
            waits(
                Reason.RETRY, due_ms=in_a_minute, attempts=3, tried_ms=int(NOW * 1000), error="Busy: later"
            ),
            plain,
            "retry",
            "if the error may pass, tries do not count while no call of post.note succeeds, for 72 h",
            "it is tried again",
        ),
        (waits(Reason.RETRY, error="BlobsUnavailable: no bucket"), plain, "object", "payload", "tried again"),
        (waits(Reason.SCHEMA, due_ms=in_a_minute), schema, "schema", "schema 00ff", "announces it"),
        (waits(Reason.RETRY), other, "gone", "takes post.gone.v1 no more", "such a handler"),
        (waits(Reason.REPLAY), plain, "replay", "an operator", "its turn"),
        (waits(Reason.NEXT), plain, "next", "nothing holds it back", "its turn"),
    ):
        keep(first, key, queue, (0, found))
        each = await only(one)
        assert (each["reason"], each["since"]) == (reason, rfc3339(NOW - 60))
        assert why in each["why"]
        assert until in each["until"]
        assert each["due"] == (rfc3339(NOW + 60) if queue.due_ms else "")
    keep(first, key, waits(Reason.RETRY, attempts=1, error="OSError: refused"), (0, plain))
    gate.breaker.record(gate.breaker.acquire(NOW), ok=False, now=NOW)
    each = await only(one, reason="breaker")
    assert each["why"] == f"the circuit breaker is open since {rfc3339(NOW)}: OSError: refused"
    told = (each["until"], each["due"])
    assert told == ("a test attempt succeeds: the next one", rfc3339(NOW + BreakerPolicy().open_for))
    pause(first, key)
    assert (await only(one, reason="paused"))["why"] == f"paused by ann since {rfc3339(NOW)}: strike"


async def test_only_a_paused_handler_is_to_be_resumed():
    stopped = {"s.b": "stopped by its open circuit breaker", "s.p": "paused"}
    found = WaitingPage(waiting=[], looked=0, left_out={}, next="")
    shown = WaitingShown(found=found, total=3, by_handler={"s.b": 2, "s.p": 1}, reasons={}, stopped=stopped)
    assert shown.paused == ["s.p"]
    assert shown.heading == "3 messages wait: 2 of them until s.b succeeds again"
    shown = replace(shown, by_handler={"s.p": 2, "s.b": 1})
    assert shown.heading == "3 messages wait: 2 of them until s.p is resumed"


async def test_messages_of_a_renamed_handler_are_found(first, one):
    key = first.key_in(0, 1)
    keep(first, key, waits(Reason.RETRY), (0, message(first, key)), handler=b"post.former")
    await first.index()
    each = await only(one, reason="gone")
    assert (each["handler"], each["why"]) == ("post.former", "the handler is gone: was it renamed?")
    assert (await only(one, key=key))["handler"] == "post.former"


async def test_a_dead_letter_holds_others_and_does_not_wait_itself(first, one):
    key = first.key_in(0, 1)
    letter = first.put_letter(key, why="unknown card")
    dead = replace(message(first, key), letter=True)
    keep(first, key, waits(Reason.DEAD), (0, dead))
    assert await listed(one) == []
    queue = append(append(waits(Reason.DEAD), 1), 1)
    keep(first, key, queue, (1, message(first, key, 1)), (2, message(first, key, 2)))
    each = await only(one)
    assert (each["id"], each["behind"], each["messages"], each["letter"]) == ("m-1", 1, 2, letter)
    assert each["why"].endswith("is a dead letter: ValueError: unknown card")
    assert each["until"] == "the dead letter is settled"
    await one.shows("/waiting", f"/dead-letters/{letter}", "behind a dead letter")
    again = replayed(queue, 1, int(NOW * 1000))
    keep(first, key, again, (again.head, message(first, key, 9)))
    assert [each["id"] for each in await listed(one, key=key)] == ["m-9", "m-1", "m-2"]


async def test_the_messages_of_a_key_are_listed_each_behind_another(first, second, one):
    key = second.key_in(2, 3)
    queue = append(append(waits(Reason.RETRY, attempts=1), 1), 1)
    keep(second, key, queue, *((n, message(second, key, n)) for n in range(3)))
    found = await listed(one, key=key)
    told = [(each["id"], each["behind"], each["attempts"]) for each in found]
    assert told == [("m-0", 2, 1), ("m-1", 1, 0), ("m-2", 0, 0)]
    assert found[1]["why"] == "behind ParcelSeen m-0"
    assert [each["id"] for each in await listed(one, key=key, limit="1")] == ["m-0", "m-1", "m-2"]
    await one.shows("/waiting", f"/waiting?key={key}&amp;handler={NOTE}", ">2</a>")


async def test_silent_lanes_and_unreadable_rows_are_named(first, second, one):
    second.lanes[2].store = None
    key = first.key_in(0)
    first.put_raw("_queues", first.partition(key), queue_name(b"post.note", key.encode()), b"x" * 20)
    answer = await one.found(WAITING)
    assert list(answer["left_out"]) == ["2"]
    assert [(each["key"], each["reason"]) for each in answer["waiting"]] == [(key, "unreadable")]
    await one.shows("/waiting", "The waiting messages of lane 2 are missing here")
    first.owns({0: first.url, 1: first.url, 2: second.url})
    assert sorted((await one.found(WAITING))["left_out"]) == ["2", "3"]


async def test_without_an_answer_no_heading_says_that_nothing_waits(first, second, one):
    said = "Not known whether messages are waiting: lanes 2, 3 did not answer"
    first.owns({0: first.url, 1: first.url})
    await one.shows("/waiting", f"<h1>{said}</h1>", hides=("No message is waiting", "Nothing is waiting"))


async def test_counts_of_waiting_messages_lead_to_them(first, one):
    first.wait(first.key_in(0, 1))
    await one.sampler.round()
    for page in ("/handlers", f"/handlers/{NOTE}"):
        await one.shows(page, f'href="/waiting?handler={NOTE}"')
    await one.shows("/", 'href="/waiting"')
    await one.shows(f"/timeline?q={first.key_in(0, 1)}", "/waiting?key=")


async def test_an_hour_of_counts_is_a_line_for_each_handler(worker, browser, monkeypatch):
    for minute in range(3):
        worker.wait(MANY_KEYS[minute])
        monkeypatch.setattr("web_workers.NOW", NOW + 60 * minute)
        await browser.sampler.round()
    (line,) = (await browser.found("/api/over-time"))["lines"]["waiting"]
    assert (line["name"], line["counts"]) == (NOTE, [1, 2, 3])
    for path, what in (
        ("/waiting", f"Waiting for {NOTE}"),
        (f"/handlers/{NOTE}", "Waiting messages"),
        ("/", "Waiting in the last hour"),
    ):
        await browser.shows(path, f'aria-label="{what}: 1 at first, 3 now, highest 3"')


async def test_one_cause_of_rows_in_a_run_is_said_once(first, one):
    key = first.key_in(0, 1)
    other = next(
        each
        for each in MANY_KEYS
        if first.partition(each) != first.partition(key) and first.lane(each) in (0, 1)
    )
    for later, each in enumerate((key, other)):
        found = HandlerPause(PauseState.PAUSED, "ann", "strike", int(NOW * 1000) + later)
        gate_of(first, each).set_pause(prefix_of(first.partition(each)), found)
        first.wait(each)
    assert (await one.shows("/waiting")).count("paused by ann") == 1
