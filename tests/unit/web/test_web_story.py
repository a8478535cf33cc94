"""What a page of a key says first: the outcome, the steps, the one that decided, and where the time went."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from streams.console.story import Story, story
from streams.console.swimlanes import FOLDED, saga_lanes, swimlanes
from streams.control.history.timeline_answers import KeyAnswer, RowChange, TimelineAnswer, TimelineEntry
from streams.control.sagas.saga_answers import SagaAnswer, entry_answer, step_answer
from streams.model.envelope import rfc3339
from streams.saga.state import LogEntry
from streams.saga.views import StepView

START = 1_767_225_600


def entry(
    number: int, ms: int, type_: str, *handlers: str, cause: int = 0, source: str = "shop", **more: Any
) -> Any:
    given: dict[str, Any] = {
        "kind": "event", "topic": type_, "id": f"m{number}", "caused_by": "", "correlation": "",
        "failure": {}, "value": {}, "partition": 0, "offset": number, "key": "k", **more,
    }  # fmt: skip
    time = rfc3339(START + ms / 1000)
    return TimelineEntry(
        number=number, time=time, after_ms=ms, type=type_, cause=cause, source=source,
        handlers=list(handlers), **given,
    )  # fmt: skip


def change(step: int, ms: int, table: str, *handlers: str) -> RowChange:
    return RowChange(
        table=table, key="k", subkey="", time=rfc3339(START + ms / 1000), topic="log", partition=0, offset=1,
        before={"status": "new"}, after={"status": "done"}, removed=False, was_removed=False, is_first=False,
        error="", step=step, sure=True, handlers=handlers,
    )  # fmt: skip


def story_of(
    *entries: TimelineEntry, changes: Any = (), status: str = "", reason: str = "", **held: Any
) -> Story:
    saga = SagaAnswer(
        id="order:k", way="choreographed", version=0, status=status, stalled=False, reason=reason,
        created_at="", changed_at="", elapsed=0.0, pending=(),
        waits_for=("pay",) if status == "failed" else (), undoing=("pay",),
    )  # fmt: skip
    given = {"letters": [], "waiting": [], "timers": [], "tables": [], **held}
    key = KeyAnswer(key="k", partition=0, lane=0, owner="", sagas=[saga] if status else [], **given)
    answer = TimelineAnswer(
        asked="k", key="k", held=key, missing="", since="", until="", stopped="", looked=9, partitions=1,
        topics=1, everywhere=False, entries=list(entries), longer="", changes=list(changes),
    )  # fmt: skip
    return story(answer)


CALLED_OFF = (
    entry(1, 0, "Placed", "orders.open", "stock.reserve"),
    entry(2, 100, "Reserved", "payments.capture", cause=1, source="app/stock"),
    entry(3, 300, "Failed", "stock.release", cause=2, source="app/payments", value={"reason": "declined"}),
)


def test_the_step_that_sent_the_reason_decided():
    found = story_of(*CALLED_OFF, status="compensated", reason="declined")
    assert found.heading == "k was cancelled: declined"
    assert found.why == "payments.capture refused Reserved after 300 ms"
    assert found.left == "Nothing is waiting: no retries, timers or dead letters."
    states = [(step.handler, step.state, step.decides) for step in found.steps]
    assert states == [
        ("orders.open", "done", False),
        ("stock.reserve", "done", False),
        ("payments.capture", "bad", True),
        ("stock.release", "undo", False),
    ]


def test_a_step_has_what_its_own_handler_sent_and_changed():
    rows = [change(1, 40, "stock", "stock.reserve"), change(1, 50, "orders", "orders.open")]
    opened, reserved, *_ = story_of(*CALLED_OFF, changes=rows).steps
    assert (opened.summary, opened.end) == ("orders: status new → done", 50)
    assert (reserved.summary, reserved.end) == ("stock: status new → done; sent Reserved", 100)


def test_a_message_that_no_handler_takes_is_kept_apart():
    found = story_of(*CALLED_OFF, entry(4, 310, "Cancelled", cause=3, source="app/stock"))
    assert [each.type for each in found.others] == ["Cancelled"]


def again(
    number: int, ms: int, kind: str, due_ms: int = 0, handler: str = "payments.capture"
) -> TimelineEntry:
    failure = {"error-type": "Timeout", "error-message": "no answer"}
    failure |= {"due": rfc3339(START + due_ms / 1000)} if due_ms else {}
    return entry(number, ms, "Reserved", *([handler] if handler else []), cause=1, kind=kind, failure=failure)


def test_attempts_are_part_of_their_step():
    (step,) = story_of(
        entry(1, 0, "Reserved", "payments.capture"),
        again(2, 200, "retry", 5000),
        again(3, 5300, "dead letter"),
    ).steps
    summary = "attempt 1 failed: Timeout: no answer; gave up after 2 attempts: Timeout: no answer"
    assert (step.state, step.decides, step.end, step.summary) == ("bad", True, 5300, summary)


def test_no_handler_takes_what_none_could_decode():
    found = story_of(
        entry(1, 0, "Reserved", "payments.capture", "orders.note"), again(2, 5, "dead letter", handler="")
    )
    assert [(step.handler, step.state) for step in found.steps] == [("", "bad")]
    assert swimlanes(found).lanes == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("Undecodable", "cannot be decoded"),
        ("MissingHeader", "has no id, key or value"),
        ("KeyMismatch", "has a record key that differs from its own key"),
    ],
)
def test_what_no_handler_has_seen_is_said_by_its_error(error, words):
    letter = again(2, 5, "dead letter", handler="")
    letter = replace(letter, failure={"error-type": error, "error-message": "see the record"})
    held = SimpleNamespace(handler="", topic="Reserved", message_type="Reserved", error_type=error)
    found = story_of(entry(1, 0, "Reserved", "payments.capture"), letter, letters=[held])
    assert found.heading == f"k is stopped: Reserved {words}; no handler has seen it"
    assert found.why == f"Reserved was refused before any handler: {error}: see the record"
    (step,) = found.steps
    assert (step.refused, step.summary) == (words, f"{error}: see the record")


@pytest.mark.parametrize(
    ("status", "heading"),
    [
        ("completed", "k is complete"),
        ("failed", "k needs a decision: pay could not be undone"),
        ("compensating", "k is being compensated: declined"),
        ("started", "k is running"),
    ],
)
def test_the_heading_has_the_state_of_the_saga(status, heading):
    assert story_of(*CALLED_OFF, status=status, reason="declined").heading == heading


def test_a_long_gap_is_folded_and_the_wait_drawn():
    late = again(2, 200, "retry", 9000)
    picture = swimlanes(
        story_of(entry(1, 0, "Reserved", "payments.capture"), late, entry(3, 9200, "Paid", cause=1))
    )
    ((track,),) = [lane.tracks for lane in picture.lanes]
    failed, waits, done = track.bars
    assert [each.kind for each in track.bars] == ["bad", "wait", ""]
    assert (failed.x, track.took) == (0, "9.2 s, 2 attempts")
    assert done.x - (failed.x + failed.width) == pytest.approx(FOLDED, abs=0.2)
    assert waits.x + waits.width == pytest.approx(done.x, abs=0.2)
    assert [mark.text for mark in picture.marks if mark.fold] == ["8.8 s skipped"]


def test_bars_stay_within_the_picture_in_order_of_time():
    picture = swimlanes(story_of(*CALLED_OFF))
    found = [(lane.service, len(lane.tracks)) for lane in picture.lanes]
    assert found == [("orders", 1), ("stock", 2), ("payments", 1)]
    bars = [bar for lane in picture.lanes for track in lane.tracks for bar in track.bars]
    assert all(bar.x >= 0 and bar.x + bar.width <= 100 for bar in bars)
    texts = [mark.x for mark in picture.marks]
    assert texts == sorted(texts)
    assert all(later - earlier >= 8 for earlier, later in pairwise(texts))


def test_a_sagas_picture_has_its_attempts_waits_and_undo():
    changes = [
        (0, "", "", "started", ""),
        (0, "pay", "pending", "in_progress", ""),
        (2, "pay", "in_progress", "in_progress", "error: busy; again in 3 s"),
        (6, "pay", "in_progress", "completed", ""),
        (7, "pay", "completed", "compensating", ""),
        (8, "pay", "compensating", "failed", "closed"),
        (8, "ship", "pending", "in_progress", ""),
    ]
    log = [
        LogEntry(number=number, time=START + at, step=step, before=before, after=after, detail=detail)
        for number, (at, step, before, after, detail) in enumerate(changes, 1)
    ]
    steps = [
        StepView(name="pay", action="bank.refund", status="failed", attempts=3),
        StepView(name="ship", action="van.ship", status="in_progress"),
        StepView(name="tell", action="", status="pending"),
    ]
    saga = SimpleNamespace(created_at=rfc3339(START), elapsed=10)
    shown = SimpleNamespace(saga=saga, steps=[*map(step_answer, steps)], log=[*map(entry_answer, log)])
    picture = saga_lanes(shown)
    found = [(lane.service, lane.tracks[0].handler, lane.tracks[0].took) for lane in picture.lanes]
    assert found == [("bank", "pay", "4.0 s, 3 attempts, waited 3.0 s"), ("van", "ship", "2.0 s")]
    bars = [(bar.kind, bar.number) for lane in picture.lanes for bar in lane.tracks[0].bars]
    assert bars == [("bad", 3), ("wait", 3), ("", 4), ("bad", 6), ("run", 7)]


def test_waits_for_decisions_are_no_time_of_a_step():
    changes = [(0, "pending", "in_progress"), (3, "in_progress", "failed"), (74, "failed", "in_progress")]
    changes += [(77, "in_progress", "completed")]
    log = [
        LogEntry(number=number, time=START + at, step="reserve", before=before, after=after, detail="")
        for number, (at, before, after) in enumerate(changes, 1)
    ]
    step = step_answer(StepView(name="reserve", action="stock.reserve", status="completed", attempts=2))
    saga = SimpleNamespace(created_at=rfc3339(START), elapsed=77)
    picture = saga_lanes(SimpleNamespace(saga=saga, steps=[step], log=[*map(entry_answer, log)]))
    (track,) = picture.lanes[0].tracks
    assert track.took == "6.0 s, 2 attempts, waited 71 s"
    assert [bar.kind for bar in track.bars] == ["bad", "wait", ""]
    assert picture.kinds == {"bad", "wait", ""}
