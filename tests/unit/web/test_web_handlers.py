"""Handlers over HTTP: any worker tells of all lanes, and sends commands to every partition."""

from typing import Any

import pytest
from web_workers import NOW, Browser, FakeWorker, bearer, in_vain, owner_of

from streams.control.base.access import Access
from streams.control.base.view import Problem
from streams.control.handlers import handlers as handlers_module
from streams.engine.waiting.gate import Failure
from streams.engine.waiting.operations.pauses import set_pause
from streams.engine.waiting.queue import Reason
from streams.errors import ClusterUnavailable, StoreUnavailable
from streams.model.envelope import TYPE, rfc3339
from streams.model.operations import (
    HANDLER_OPERATION,
    HandlerCommand,
    HandlerPause,
    PauseState,
    decode_handler_operation,
)

HANDLERS = "/api/handlers"
NOTE = "post.note"
ASK = {"operation": "pause", "who": "ann", "why": "the post is on strike"}


pytestmark = pytest.mark.usefixtures("gated")


def paused(
    worker: FakeWorker, *partitions: int, at: float = NOW - 60, state: PauseState = PauseState.PAUSED
) -> None:
    for partition in partitions:
        change = set_pause(NOTE, HandlerPause(state, "ann", f"since {at:.0f}", int(at * 1000)))
        worker.put_raw("_handlers", partition, change.key[1:], change.value)


async def only(browser: Browser, path: str = HANDLERS) -> tuple[Any, Any]:
    answer = await browser.found(path)
    (handler,) = answer["handlers"]
    return handler, answer


async def test_a_lane_whose_disk_fails_is_left_out(first, second, one, monkeypatch):
    def fails(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("input/output error")

    monkeypatch.setattr(first.lanes[0].store, "scan", fails)
    handler, answer = await only(one)
    assert sum(handler["partitions"].values()) == 6
    assert list(answer["left_out"]) == ["0"]
    assert "lane 0 cannot use its local store: input/output error" in answer["left_out"]["0"]
    assert (await one.found("/api/worker"))["url"] == first.url


async def test_all_lanes_are_told_of_together(first, second, one):
    paused(first, 0, 4, 1, 5)
    paused(second, 2, at=NOW - 5)
    paused(second, 6, state=PauseState.DRAINING)
    gate = second.lanes[3].gates[NOTE]
    gate.breaker.record(gate.breaker.acquire(NOW), ok=False, now=NOW)
    gate.under_way = 2
    first.lanes[0].gates[NOTE].add(b"one")
    handler, answer = await only(one)
    assert handler["partitions"] == {"draining": 1, "paused": 5, "running": 2}
    assert (handler["who"], handler["why"]) == ("ann", f"since {NOW - 5:.0f}"), "the newest"
    assert handler["breakers"] == {"closed": 3, "open": 1}
    assert (handler["keys"], handler["attempts"], handler["waiting"]) == (1, 2, {})
    assert (answer["partitions"], answer["left_out"], answer["max_waiting"]) == (8, {}, 1_000_000)


@pytest.mark.promise("awaited-schemas")
async def test_awaited_schemas_are_told_of_all_lanes_together(first, second, one):
    for worker, key, schema, age in ((first, 1, b"a", 5), (second, 2, b"a", 60), (second, 3, b"b", 50)):
        gate = next(iter(worker.lanes.values())).gates[NOTE]
        gate.unread.add(b"%d" % key, "post.made.v1", schema * 16, NOW - age)
    handler, _ = await only(one)
    found = [(each["schema"], each["handler"], each["keys"], each["since"]) for each in handler["schemas"]]
    assert found == [("a" * 16, NOTE, 2, rfc3339(NOW - 60)), ("b" * 16, NOTE, 1, rfc3339(NOW - 50))]


async def test_what_waits_is_counted_by_reason_up_to_a_bound(both, one, monkeypatch):
    for number, key in enumerate(f"k{n}" for n in range(40)):
        owner_of(key, *both).wait(key, reason=Reason.PAUSED if number % 4 else Reason.RETRY)
    handler, _ = await only(one, f"{HANDLERS}/{NOTE}")
    assert (handler["waiting"], handler["counted_all"]) == ({"paused": 30, "retry": 10}, True)
    monkeypatch.setattr(handlers_module, "MOST_COUNTED", 2)
    handler, _ = await only(one, f"{HANDLERS}/{NOTE}")
    assert (sum(handler["waiting"].values()), handler["counted_all"]) == (8, False)


async def test_lanes_that_cannot_be_asked_are_named(first, second, one):
    second.lanes[2].store = None
    first.owns({0: first.url, 1: first.url, 2: second.url})
    handler, answer = await only(one)
    assert handler["partitions"] == {"running": 4}
    assert sorted(answer["left_out"]) == ["2", "3"]
    first.lanes.clear()
    first.owns({})
    handler, answer = await only(one)
    assert (handler["handler"], handler["partitions"], len(answer["left_out"])) == (NOTE, {}, 4)


async def test_for_another_worker_one_answers_for_its_own_lanes(one):
    headers = {"Steadfaust-Asked-By": "http://127.0.0.1:9"}
    answer = await one.found(HANDLERS, params={"lanes": "1,2"}, headers=headers)
    assert answer["handlers"][0]["partitions"] == {"running": 2}
    assert list(answer["left_out"]) == ["2"]
    assert await one.refusal(HANDLERS, params={"lanes": "x"}, headers=headers) == (400, "bad_lanes")


async def test_a_command_goes_to_every_partition_under_one_id(first, one):
    status, answer = await one.ask(f"{HANDLERS}/{NOTE}/operations", ASK)
    assert (status, answer["partitions"], answer["operation"]) == (200, 8, "pause")
    assert [to.partition for to, _ in first.asked] == list(range(8))
    for _, post in first.asked:
        headers, command = dict(post.headers), decode_handler_operation(post.value)
        assert (headers["ce_id"], headers[TYPE]) == (answer["id"].encode(), HANDLER_OPERATION.encode())
        assert (command.kind, command.handler) == (HandlerCommand.PAUSE, NOTE)
        assert (command.who, command.why) == ("ann", ASK["why"])
    _, again = await one.ask(f"{HANDLERS}/{NOTE}/operations", {**ASK, "id": "mine"})
    assert again["id"] == "mine"


@pytest.mark.parametrize(
    ("handler", "change", "headers", "refused"),
    [
        ("post.nobody", {}, {}, (404, "no_handler")),
        (NOTE, {"why": " "}, {}, (400, "no_reason")),
        (NOTE, {"operation": "stop"}, {}, (400, "bad_request")),
        (NOTE, {"id": "x" * 201}, {}, (400, "bad_id")),
        (NOTE, {}, {"Content-Type": "text/plain"}, (403, "not_json")),
        (NOTE, {}, {"Origin": "http://evil.example"}, (403, "not_json")),
    ],
)
async def test_a_command_that_is_refused_sends_nothing(first, one, handler, change, headers, refused):
    status, answer = await one.ask(f"{HANDLERS}/{handler}/operations", {**ASK, **change}, **headers)
    assert (status, answer["error"]) == refused
    assert first.asked == []
    if refused[0] == 404:
        assert NOTE in answer["detail"]


async def test_the_page_of_a_worker_shows_what_is_paused(first, second, one):
    await one.shows("/worker", hides="Paused handlers")
    paused(first, 0, 4)
    paused(second, 2)
    first.lanes[1].store = None
    await one.shows("/worker", "paused in 2")
    _, worker = await one.json("/api/worker")
    (shown,) = worker["paused"]
    assert (shown["handler"], shown["partitions"], shown["who"]) == (NOTE, {"paused": 2}, "ann")


async def test_handlers_have_pages_from_which_they_are_paused(first, second, one):
    paused(second, 2)
    first.wait(first.key_in(0, 1))
    await one.shows("/handlers", f'href="/handlers/{NOTE}"', "The handler is running")
    second.lanes[2].gates[NOTE].pauses[b""] = HandlerPause(PauseState.PAUSED, "ann", "strike", 1)
    await one.shows("/handlers", f"<h1>{NOTE} is paused</h1>", "By ann: strike")
    await one.shows(
        f"/handlers/{NOTE}", "paused in 1 of 8, running in 7 of 8", "1 message waits</a>: retry 1;"
    )
    fields = {"operation": "pause", "who": "ann", "why": "<b>strike</b>"}
    assert (await one.send(f"/handlers/{NOTE}", **fields))[:2] == (303, f"/handlers/{NOTE}?asked=pause")
    assert {tp.partition for tp, _ in first.asked} == set(range(8))
    operation = decode_handler_operation(first.asked[0][1].value)
    assert (operation.kind, operation.who) == (HandlerCommand.PAUSE, "ann")
    await one.shows(f"/handlers/{NOTE}?asked=pause", "Requested: pause")
    assert (await one.send(f"/handlers/{NOTE}", **{**fields, "operation": "stop"}))[0] == 400


@pytest.mark.parametrize("asked", ["pause", "drain", "resume"])
async def test_a_handler_takes_no_second_operation_before_the_first(both, one, asked):
    if asked == "resume":
        paused(both[0], 0)
    page = await one.shows(f"/handlers/{NOTE}?asked={asked}", f"{asked} requested", f"Requested: {asked}.")
    assert 'hx-select-oob="#evidence,#act"' in page
    assert page.count(" disabled>") == page.count('name="operation"') > 0
    await one.shows(f"/handlers/{NOTE}?asked=bogus", hides=(" disabled>", "requested</span>"))


async def test_a_handler_that_was_resumed_takes_operations(both, one):
    await one.shows(f"/handlers/{NOTE}?asked=resume", hides=(" disabled>", "resume requested"))


FIELDS = {"operation": "pause", "who": 'Night "Sue"', "why": "gateway <closed>"}


async def test_an_operation_without_an_answer_keeps_what_was_typed(one, monkeypatch):
    silent = in_vain(Problem(504, "busy", "the owner did not answer in 1 s"))
    monkeypatch.setattr("streams.console.handlers.ask_handler", silent)
    status, _, page = await one.send(f"/handlers/{NOTE}?x=1", **FIELDS)
    assert (status, "Nothing was sent." in page) == (504, True)
    typed = ['value="Night &#34;Sue&#34;"', 'value="gateway &lt;closed&gt;"', 'value="pause"']
    typed.append(f'action="/handlers/{NOTE}?x=1"')
    assert [text for text in typed if text not in page] == []
    monkeypatch.undo()
    assert (await one.send(f"/handlers/{NOTE}?x=1", **FIELDS))[0] == 303


async def test_an_operation_that_may_be_sent_says_so(first, one, monkeypatch):
    monkeypatch.setattr(first, "operate", in_vain(ClusterUnavailable("no broker")))
    status, _, page = await one.send(f"/handlers/{NOTE}", **FIELDS)
    assert (status, "It may have been sent." in page) == (503, True)
    assert "Nothing was sent." not in page


async def test_a_form_of_another_page_is_not_given_back(one):
    await one.page("/login")
    status, _, page = await one.send_raw(f"/handlers/{NOTE}", csrf="guessed", **FIELDS)
    assert (status, "gateway" in page) == (403, False)


async def test_enter_in_a_handlers_form_does_what_is_next(first, second, one):
    """It presses the first button: one that is paused is to be resumed."""
    _, page = await one.page(f"/handlers/{NOTE}")
    assert page.index('value="pause"') < page.index('value="resume"')
    paused(second, 2)
    _, page = await one.page(f"/handlers/{NOTE}")
    assert page.index('value="resume"') < page.index('value="pause"')
    paused(second, 2, 3, 6, 7)
    paused(first, 0, 1, 4, 5)
    page = await one.shows(f"/handlers/{NOTE}", 'class="primary" name="operation" value="resume"')
    assert 'value="pause"' not in page


async def test_who_may_only_look_sees_handlers_and_cannot_pause_them(worker):
    access = Access(token="t" * 20, viewer_token="v" * 20, login=True)
    async with Browser.of(worker, access) as browser:
        looks = bearer("v" * 20)
        await browser.shows(f"/handlers/{NOTE}", hides="<button name", headers=looks)
        assert (await browser.send_raw(f"/handlers/{NOTE}", looks, **ASK))[0] == 403
    assert worker.asked == []


async def test_a_handlers_page_has_its_failures_and_what_waits_longest(first, second, one):
    for age, worker in enumerate((first, second)):
        gate = worker.lanes[min(worker.lanes)].gates[NOTE]
        gate.failures.append(Failure(NOW - age, b"k%d" % age, f"OSError: no {age}", "Later"))
    key = second.key_in(2, 3)
    second.wait(key, since=NOW - 90)
    handler, _ = await only(one, f"{HANDLERS}/{NOTE}")
    found = [(each["key"], each["error"]) for each in handler["failures"]]
    assert found == [("k0", "OSError: no 0"), ("k1", "OSError: no 1")]
    shown = ("OSError: no 1", "95 % take at most", f'<a href="/search?q={key}">', "90 s")
    await one.shows(f"/handlers/{NOTE}", *shown)
