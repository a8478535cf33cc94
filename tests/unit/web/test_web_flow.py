"""The overview: parts of several workers as one, what somebody should look at, and its picture."""

import asyncio
import time
from types import SimpleNamespace
from urllib.parse import quote

import msgspec
import pytest
from web_workers import NOW, Browser, FakeStandby, FakeWorker, handler_shown, in_vain

from streams.console.flow_columns import flow_columns
from streams.console.pages import render
from streams.control.base import others
from streams.control.base.others import Others
from streams.control.base.view import Problem
from streams.control.overview.flow import merge, overview_of, shown
from streams.control.overview.flow_answers import (
    HandlerPart,
    LaneCounts,
    LetterErrors,
    NamedSaga,
    ServiceShown,
    StandbyPart,
    TopicPart,
    TopicShown,
    Warned,
    WorkerPart,
)
from streams.control.overview.flow_part import worker_part
from streams.control.overview.last_known import LastKnown
from streams.control.overview.pace import Pace, PacePart
from streams.control.overview.rates import RatePoller
from streams.control.overview.samples import LaneSample
from streams.engine.life.state import LaneState
from streams.engine.staging.keys import prefix_of
from streams.engine.waiting.gate import Failure
from streams.errors import ClusterUnavailable
from streams.model.envelope import rfc3339
from streams.model.operations import HandlerPause, PauseState
from streams.model.policy.breaker import NO_PERMIT
from tests.waiting import eventually_async

HOSTILE = "\"><script>alert('x')</script>"
TOPIC = "post.parcel.seen.v1"
OTHER = "http://127.0.0.1:2"


def part(**of) -> WorkerPart:
    return WorkerPart(**{"url": "http://127.0.0.1:1", "slot": 0, "ready": True, **of})


# -- merging ----------------------------------------------------------------------------------------------


def test_rates_lags_and_counts_of_workers_add_up():
    here = HandlerPart(
        handler="s.h", rate=2.0, failures=1, durations=[1, 0, 2], waiting={"retry": 2}, oldest_waiting=5.0,
        letters=1,
    )  # fmt: skip
    there = HandlerPart(
        handler="s.h", rate=3.0, durations=[0, 1, 1], waiting={"retry": 1, "pause": 4}, oldest_waiting=9.0,
        paused=2, breakers=1,
    )  # fmt: skip
    first = TopicPart(topic="a", rate=1.5, rate_minute=1.0, lag=3, lag_before=1)
    others = [TopicPart(topic="a", rate=0.5, lag=4), TopicPart(topic="b", rate=7.0)]
    found = merge([part(topics=[first], handlers=[here]), part(url=OTHER, topics=others, handlers=[there])])
    assert found.topics["a"] == TopicPart(topic="a", rate=2.0, rate_minute=1.0, lag=7, lag_before=1)
    assert found.topics["b"].rate == 7.0
    handler = found.handlers["s.h"]
    assert (handler.rate, handler.failures, handler.durations) == (5.0, 1, [1, 1, 3])
    assert (handler.waiting, handler.oldest_waiting, handler.waits) == ({"retry": 3, "pause": 4}, 9.0, 7)
    assert (handler.letters, handler.paused, handler.breakers) == (1, 2, 1)


def test_a_worker_that_counts_no_attempts_lessens_nothing():
    counted = part(handlers=[HandlerPart(handler="s.h", durations=[1, 2])])
    silent = part(url=OTHER, handlers=[HandlerPart(handler="s.h", durations=[])])
    assert merge([counted, silent]).handlers["s.h"].durations == [1, 2]


# -- warnings ---------------------------------------------------------------------------------------------


def texts(*parts: WorkerPart) -> list[str]:
    return [each.text for each in merge(parts).warnings]


def handler(**of) -> dict[str, list[HandlerPart]]:
    return {"handlers": [HandlerPart(handler="s.h", **of)]}


def counts(**of) -> dict[str, list[LaneCounts]]:
    return {"counts": [LaneCounts(lane=0, at=NOW, **of)]}


@pytest.mark.parametrize(
    ("of", "text", "link", "grave"),
    [
        (handler(letters=2), "2 messages failed for good in s.h", "/dead-letters?handler=s.h", True),
        (
            handler(letters=1, waiting={"dead": 3, "retry": 1}),
            "1 message failed for good in s.h, and 3 wait behind it",
            "/dead-letters?handler=s.h",
            True,
        ),
        (handler(paused=3), "s.h is paused in 3 partitions: its messages wait", "/handlers/s.h", True),
        (handler(breakers=1), "s.h fails, and its messages wait", "/handlers/s.h", False),
        (counts(sagas={"failed": 1}), "1 saga needs a decision", "/sagas?status=failed", True),
        (counts(stalled=2), "2 sagas should have ended by now", "/sagas?stalled=1", False),
        (
            {"silent": "no answer in 1 s", "owns": [0, 2]},
            "The worker 127.0.0.1:1 does not answer, and owns lanes 0, 2",
            "/workers/127.0.0.1:1",
            True,
        ),
        (
            {"topics": [TopicPart(topic="a.b", rate=5.0, lag=3000, lag_before=1500)]},
            "a.b is handled more slowly than it is written: 3000 messages wait, 1500 more than a minute ago",
            "/topics/a.b",
            False,
        ),
    ],
)
def test_each_trouble_is_a_sentence_with_a_link(of, text, link, grave):
    (found,) = merge([part(**of)], {each.lane: each for each in of.get("counts", ())}).warnings
    assert (found.text, found.link, found.grave) == (text, link, grave)
    assert found.do


def dead(error: str, count: int, text: str = "", place: str = "a.py:1 f") -> LetterErrors:
    return LetterErrors(error=error, place=place, text=text, count=count)


def test_the_cause_of_dead_letters_is_their_own_error():
    """Not what the handler failed with last: that may be another message's."""
    here = {"s.h": [dead("PermanentError", 3, "the till is closed"), dead("KeyError", 1, "'x'")]}
    there = {"s.h": [dead("PermanentError", 1, "the till is closed"), dead("KeyError", 1, "'y'", "b.py:2 g")]}
    lanes = {
        lane: LaneCounts(lane=lane, at=NOW, letters={"s.h": sum(each.count for each in errors["s.h"])},
                         letter_errors=errors)
        for lane, errors in enumerate((here, there))
    }  # fmt: skip
    gateway = HandlerPart(handler="s.h", error="GatewayUnavailable: capture:load-9209: no answer")
    (found,) = merge([part(handlers=[gateway])], lanes).warnings
    assert found.text == "6 messages failed for good in s.h"
    assert found.why == (
        "The largest of 3 groups has 4 of the 6 dead letters, such as PermanentError: the till is closed"
    )


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        ([], ""),
        ([dead("KeyError", 1, "'x'")], "KeyError: 'x'"),
        ([dead("KeyError", 2, "'x'")], "Such as KeyError: 'x'"),
        ([dead("Odd", 1)], "Odd"),
    ],
)
def test_one_group_of_dead_letters_is_said_without_numbers(errors, why):
    letters = sum(each.count for each in errors) or 1
    (found,) = merge([part(**handler(letters=letters, letter_errors=errors, error="another"))]).warnings
    assert found.why == why


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        (
            [dead("Undecodable", 13), dead("MissingHeader", 7), dead("KeyMismatch", 6)],
            (
                "26 messages were refused before any handler: 13 cannot be decoded, 7 have no id, key or"
                " value, 6 have record keys that differ from their own keys"
            ),
        ),
        ([dead("MissingHeader", 1)], "1 message was refused before any handler: it has no id, key or value"),
        ([dead("KeyMismatch", 2)], "2 messages were refused before any handler: they have record keys that"),
        ([dead("Odd", 1), dead("Odder", 1)], "2 messages were refused before any handler: 1 failed with Odd"),
        ([], "1 message was refused before any handler"),
    ],
)
def test_messages_before_any_handler_are_said_by_their_errors(errors, text):
    letters = sum(each.count for each in errors) or 1
    parts = HandlerPart(handler="", letters=letters, letter_errors=errors)
    (found,) = merge([part(handlers=[parts])]).warnings
    assert found.text.startswith(text)


def test_decisions_come_by_what_they_hold():
    old = HandlerPart(handler="", letters=1, letter_errors=[dead("Undecodable", 1)])
    many = HandlerPart(handler="s.z", letters=4)
    paused = HandlerPart(handler="s.p", paused=1)
    lanes = {0: LaneCounts(lane=0, at=NOW, sagas={"failed": 1})}
    found = [each.text for each in merge([part(handlers=[old, many, paused])], lanes).warnings]
    order = ["s.p is paused", "1 saga needs", "4 messages failed", "1 message was refused"]
    assert [text.startswith(head) for text, head in zip(found, order, strict=True)] == [True] * 4, found


STUCK = NamedSaga(id="order:a", why="pay could not be undone: no till", since="2027-01-15T08:00:02.000Z")
LATER = NamedSaga(id="order:b", why="ship could not be done", since="2027-01-15T08:00:03.000Z")


@pytest.mark.parametrize(
    ("lanes", "text", "why", "link"),
    [
        (
            [{"sagas": {"failed": 1}, "failed_saga": STUCK}],
            "order:a needs a decision",
            "pay could not be undone: no till",
            "/sagas/order%3Aa",
        ),
        (
            [{"sagas": {"failed": 2}, "failed_saga": LATER}, {"sagas": {"failed": 1}, "failed_saga": STUCK}],
            "3 sagas need a decision",
            "The oldest, order:a: pay could not be undone: no till",
            "/sagas?status=failed",
        ),
        (
            [{"stalled": 1, "overdue_saga": LATER}],
            "order:b should have ended by now",
            "ship could not be done",
            "/sagas/order%3Ab",
        ),
    ],
)
def test_sagas_are_named_with_why_they_stand(lanes, text, why, link):
    found = {lane: LaneCounts(lane=lane, at=NOW, **of) for lane, of in enumerate(lanes)}
    (warned,) = merge([part()], found).warnings
    assert (warned.text, warned.why, warned.link) == (text, why, link)
    assert warned.since in (STUCK.since, LATER.since)


def test_a_worker_whose_loop_stands_is_slow(worker):
    slow = part(slot=1, pace=PacePart(late=0.8, stood=0.7, cpu=0.2), owns=[0])
    quick = part(url=OTHER, pace=PacePart(late=0.9, stood=0.1))
    found = merge([slow, quick, part(url="http://127.0.0.1:3")])
    (warned,) = found.warnings
    assert warned.text == "Slot 1 is slow: its event loop is 0.8 s late"
    assert "70% of the last ten seconds" in warned.why
    assert (warned.link, warned.grave) == ("/workers/127.0.0.1:1", False)


def test_the_table_of_workers_has_what_each_does_and_takes(worker):
    lane = msgspec.structs.replace(worker_part(worker, RatePoller(worker), {}).lanes[1], oldest=4.9)
    busy = part(
        measured=True, version="9.8.7", pace=PacePart(late=0.8, stood=0.7, cpu=0.2, memory=300 << 20),
        lanes=[lane], handlers=[HandlerPart(handler="a", rate=1.5), HandlerPart(handler="b", rate=2.0)],
    )  # fmt: skip
    page = render("overview_workers.html", answer=shown(worker, merge([busy, part(url=OTHER)])))
    for text in ("3.5/s", "4.9 s", "800 ms", "20%", "315 MB", "9.8.7"):
        assert text in page


def test_a_loop_that_stands_is_late_and_slow():
    now, used = 0.0, 0.0
    pace = Pace(lambda: now, lambda: used)
    assert pace.part().late == 0.0
    for _ in range(12):  # stopped for most of each second
        now, used = now + 1.0, used + 0.2
        pace.look(now - 0.75)
    found = pace.part()
    assert (found.late, found.stood, found.cpu, found.slow) == (0.75, 0.75, 0.2, True)
    for _ in range(44):
        now += 0.25
        pace.look(now)
    assert not pace.part().slow
    assert pace.part().late == 0.0


async def test_a_worker_tells_how_late_its_own_loop_is(worker, monkeypatch):
    monkeypatch.setattr("streams.control.overview.pace.TICK", 0.0)
    looks = RatePoller(worker)
    async with looks.running():

        def is_late() -> bool:
            time.sleep(0.02)  # the loop stands
            return looks.pace.part().late > 0

        await eventually_async(is_late, "the loop was late", every=0)
    told = worker_part(worker, looks, {})
    assert told.pace.late > 0
    assert told.version


@pytest.mark.parametrize(
    "numbers",
    [
        {"lag": 3000, "lag_before": 2900},  # it stands as it stood
        {"lag": 3000, "lag_before": 0, "rate": 1000.0},  # three seconds of work
        {"lag": 900, "lag_before": 0},
        {"lag": 5, "rate": 100.0},
    ],
)
def test_a_lag_that_is_small_or_stands_is_no_trouble(numbers):
    assert texts(part(topics=[TopicPart(topic="a", **numbers)])) == []


def test_what_stands_still_is_said_first():
    light, grave = Warned(text="x", link="/", where="it"), Warned(text="y", link="/", where="it", grave=True)
    assert texts(part(warnings=[light]), part(url=OTHER, warnings=[grave])) == ["y", "x"]


# -- a worker's part --------------------------------------------------------------------------------------


@pytest.fixture
def worker():
    worker = FakeWorker.with_lanes(0, 1, 2, 3, slot=4)
    worker.lanes[1].measures.intake = SimpleNamespace(
        taken_by_topic={TOPIC: 9}, not_taken={TOPIC: 4}, lag=6, oldest=int((NOW - 3) * 1000)
    )
    return worker


def test_a_worker_tells_of_its_lanes_handlers_and_topics(worker):
    worker.gate(1)
    sample = LaneSample(NOW - 4)
    sample.letters["post.note", "open", "1h"] = 2
    sample.waiting["post.note", "retry"] = 3
    sample.oldest_waiting["post.note"] = NOW - 30
    sample.sagas["order", "", "failed"] = 1
    sample.overdue_sagas = 5
    found = worker_part(worker, RatePoller(worker), {1: sample})
    (counted,) = found.counts
    assert (found.slot, found.ready, counted.at, counted.stalled) == (4, True, NOW - 4, 5)
    (handler,) = merge([found], {1: counted}, NOW).handlers.values()
    assert (handler.letters, handler.waits, handler.oldest_waiting) == (2, 3, 30.0)
    gone = worker_part(worker, RatePoller(worker), {1: sample, 9: sample})
    assert [each.lane for each in gone.counts] == [1], "a lane counts once: where it runs"
    (topic,) = found.topics
    assert (topic.topic, topic.lag) == (TOPIC, 4)
    lane = found.lanes[1]
    assert (lane.state, lane.lag, lane.oldest, lane.idle) == ("open", 6, 3.0, 2.0)
    assert found.lanes[0].lag is None


def test_a_lane_that_recovers_tells_how_far_it_is(worker):
    lane = worker.lanes[2]
    lane.state = LaneState.OPENING
    lane.measures.recovering(800)
    lane.measures.recovering(200)
    found = worker_part(worker, RatePoller(worker), {})
    assert (found.lanes[2].recovery.copied, found.lanes[2].recovery.total) == (600, 800)
    assert found.lanes[0].recovery is None
    lane.measures.recovering(900)  # it has begun again
    assert worker_part(worker, RatePoller(worker), {}).lanes[2].recovery.copied == 0


def test_a_follower_that_catches_up_tells_how_far_it_is(worker):
    worker.standbys = {5: FakeStandby(5, to_copy=(100, 0.0), behind=40), 6: FakeStandby(6, behind=3)}
    catching_up, keeping_up = worker_part(worker, RatePoller(worker), {}).standbys
    assert (catching_up.copying.copied, catching_up.copying.percent) == (60, 60)
    assert (keeping_up.copying, keeping_up.behind) == (None, 3)


# -- all of them ------------------------------------------------------------------------------------------


async def test_all_owners_are_asked_at_once_and_merged(worker):
    worker.owns({0: worker.url, 1: OTHER, 2: "http://127.0.0.1:3"})
    under_way, both = [], asyncio.Event()

    async def ask(owner, path, query):
        under_way.append(owner)
        if len(under_way) == 2:
            both.set()
        await both.wait()
        return WorkerPart(url=owner, ready=True, owns=[{OTHER: 1}.get(owner, 2)])

    answer = await overview_of(worker, RatePoller(worker), {}, Others(ask), LastKnown(worker))
    assert {each.url for each in answer.workers} == {worker.url, OTHER, "http://127.0.0.1:3"}
    assert answer.homeless == [3]


async def silent(*_):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (silent, "no answer in 0.02 s"),
        (in_vain(Problem(502, "owner_unreachable", "...")), "it cannot be reached"),
        (in_vain(Problem(502, "owner_refused", "it wants another token")), "it wants another token"),
    ],
)
async def test_a_worker_that_does_not_answer_is_shown(worker, monkeypatch, ask, why):
    monkeypatch.setattr(others, "PATIENCE", 0.02)
    worker.owns({0: worker.url, 1: OTHER})
    answer = await overview_of(worker, RatePoller(worker), {}, Others(ask), LastKnown(worker))
    (shown,) = (each for each in answer.workers if each.silent)
    assert (shown.url, shown.owns) == (OTHER, [1])
    assert answer.warnings[0].grave
    assert answer.warnings[0].text == "The worker 127.0.0.1:2 does not answer, and owns lane 1"
    assert answer.warnings[0].why.lower() == why


def test_kafka_away_is_one_sentence_for_all_lanes(worker):
    worker.stuck_lanes = [0, 1, 2]
    for number in (0, 1):
        worker.lanes[number].error = ClusterUnavailable("no broker")
    worker.own_warnings = ["Kafka does not answer: broker 127.0.0.1:9 for 2 s"]
    found = worker_part(worker, RatePoller(worker), {})
    assert found.away == {0: 2.0, 1: 2.0}
    texts = [each.text for each in merge([found, part(url=OTHER, away={5: 9.0})]).warnings]
    assert texts[0] == "Kafka does not answer: lanes 0, 1, 5 are without progress for 9 s"
    assert len([text for text in texts if "lane 0" in text or "lane 1 " in text]) == 0
    assert len([text for text in texts if "Kafka does not answer" in text]) == 1
    worker.stuck_lanes = []
    (one,) = merge([worker_part(worker, RatePoller(worker), {})] * 2).warnings
    assert one.text == worker.own_warnings[0]
    assert len([text for text in texts if "lane 2 is open" in text]) == 1


def test_a_pause_and_a_breaker_say_because_of_what(worker):
    gate = worker.gate(1, minimum=1)
    gate.failures.append(Failure(NOW, b"k", "OSError: refused", "Later"))
    gate.record(NO_PERMIT, ok=False, now=NOW)
    gate.set_pause(prefix_of(1), HandlerPause(PauseState.PAUSED, "ann", "strike", int(NOW * 1000)))
    paused, opened = merge([worker_part(worker, RatePoller(worker), {})]).warnings
    since = rfc3339(NOW)
    assert (paused.why, paused.since) == ("By ann: strike", since)
    assert (opened.why, opened.since) == ("The circuit breaker is open in 1 lane: OSError: refused", since)


def test_messages_for_a_handler_that_is_gone_are_a_problem(worker):
    counted = LaneCounts(lane=0, at=NOW, waiting={"post.former": {"retry": 2}})
    found = shown(worker, merge([part()], {0: counted}, NOW)).warnings[0]
    assert found.text == "2 messages wait for post.former, which no worker has: was it renamed?"
    assert (found.link, found.grave) == ("/waiting?handler=post.former", True)


async def test_lanes_of_a_silent_worker_count_as_before(worker, monkeypatch):
    monkeypatch.setattr(others, "PATIENCE", 0.02)
    worker.owns({0: worker.url, 1: OTHER, 2: OTHER})
    before = LaneCounts(lane=1, at=NOW - 60, waiting={"post.note": {"retry": 5}}, letters={"post.note": 2})
    known = LastKnown(worker)
    known.take([WorkerPart(url=OTHER, counts=[before])])
    known.take([WorkerPart(url=OTHER, counts=[LaneCounts(lane=1, at=NOW - 90)])])
    answer = await overview_of(worker, RatePoller(worker), {0: LaneSample(NOW)}, Others(silent), known)
    assert (answer.waiting, answer.letters, answer.old_counts) == (5, 2, {1: 60.0})
    assert (answer.uncounted, answer.silent_lanes, answer.counted) == ([2, 3], [1, 2], 60.0)
    page = render("overview_tiles.html", answer=answer, now=NOW)
    assert "; counts of lane 1 are up to 60 s old." in page
    assert "Rates and lag lack lanes 1, 2, whose owner does not answer; counts lack lanes 2, 3" in page
    cards = (
        "messages not taken yet, without lanes 1, 2",
        "<b>\u2013</b>",
        "failed for good, without lanes 2, 3",
    )
    assert [text for text in cards if text not in page] == []


def test_lost_workers_and_standbys_are_problems_until_back(worker):
    known = LastKnown(worker)

    def found(*members: str, followers: dict[int, tuple[str, ...]]) -> list[str]:
        worker.assignment = msgspec.structs.replace(
            worker.assignment, members=(worker.url, *members), followers=followers
        )
        return [each.text.split(" since")[0] for each in known.warnings()]

    follows = dict.fromkeys(range(4), (OTHER,))
    assert found(OTHER, followers=follows) == []
    lost = ["The worker 127.0.0.1:2 is lost", "Lanes 0, 1, 2, 3 lack a standby"]
    assert found(followers={}) == lost
    assert found(followers={0: (OTHER,), 1: (OTHER,)}) == [lost[0], "Lanes 2, 3 lack a standby"]
    another = "http://127.0.0.1:9"
    assert found(another, followers=follows) == [], "another worker has come for it"
    assert found(OTHER, another, followers=follows) == []


def test_an_open_breaker_is_told_once_for_all_workers(worker):
    gate = worker.gate(1, minimum=1)
    gate.record(NO_PERMIT, ok=False, now=NOW)
    assert not gate.clear
    found = worker_part(worker, RatePoller(worker), {})
    assert found.warnings == []
    (warned,) = merge([found, msgspec.structs.replace(found, url=OTHER)]).warnings
    assert "is open in 2 lanes" in warned.why


# -- the columns and the page -----------------------------------------------------------------------------


def topic(name: str, senders: list[str], takers: list[str], rate: float = 0.0) -> TopicShown:
    numbers = TopicPart(topic=name, rate=rate)
    return TopicShown(topic=name, message=name, senders=senders, takers=takers, numbers=numbers)


def test_services_are_in_columns_in_the_order_of_the_messages(worker):
    numbers = {"b": {"waiting": {"retry": 2}, "letters": 1}}
    services = [
        ServiceShown(service=name, handlers=[handler_shown(f"{name}.h", "t", **numbers.get(name, {}))])
        for name in "abcd"
    ]
    topics = [
        topic("in", [], ["a"], 9.0), topic("ab", ["a"], ["b", "d"], 3.0), topic("bc", ["b"], ["c"], 2.0),
        topic("ac", ["a"], ["c"]), topic("back", ["c"], ["a"]), topic("own", ["b"], ["b"], 50.0),
        topic("also in", [], ["a", "b"], 7.0),
    ]  # fmt: skip
    answer = msgspec.structs.replace(shown(worker, merge([part()])), services=services, topics=topics)
    columns = flow_columns(answer)
    assert [[each.name for each in column.services] for column in columns] == [["a"], ["b", "d"], ["c"]]
    assert [(column.onward, column.waits) for column in columns] == [(10.0, 2), (2.0, 0), (0, 0)]
    service = columns[1].services[0]
    assert (service.state, service.words) == ("stop", "2 waiting, 1 dead letter")


def test_dead_letters_of_no_handler_are_in_tables_alone(worker):
    answer = shown(worker, merge([part(handlers=[HandlerPart(handler="", letters=3)])]))
    assert [each.service for each in answer.services] == ["post", ""]
    assert [each.name for column in flow_columns(answer) for each in column.services] == ["post"]


async def test_the_first_page_is_the_overview_in_words_too(worker, browser):
    said = ("All is well", "<svg", "ParcelSeen", "post.note", f'href="/topics/{TOPIC}"', "Slot 4")
    await browser.shows("/", *said, hides="style=")
    answer = (await browser.json("/api/overview"))[1]
    assert [each["topic"] for each in answer["topics"]] == [TOPIC]


def test_the_heading_and_the_first_problem_say_it_once(worker):
    def page(*warnings: Warned) -> str:
        parts = [part(owns=[0, 1, 2, 3], warnings=[*warnings])]
        answer = shown(worker, merge(parts, {0: LaneCounts(lane=0, at=NOW)}, NOW))
        return "".join(
            render(f"overview_{each}.html", answer=answer, now=NOW) for each in ("state", "warnings")
        )

    assert "nothing is stopped or late; lanes 1, 2, 3 are not counted yet</h1>" in page()
    found = page(*(Warned(text=f"x{n} is slow", link="/", where="it") for n in range(2)))
    assert [found.count(f"x{n} is slow") for n in range(2)] == [1, 1]


async def test_what_is_wrong_is_on_top_and_not_run(worker, browser):
    worker.stuck_lanes = [1]
    worker.lanes[1].error = ValueError(HOSTILE)
    mended_at = 'href="/workers/127.0.0.1:1"'
    said = ("lane 1 is open, without progress", mended_at, "&lt;script&gt;alert")
    await browser.shows("/", *said, hides=("All is well:", HOSTILE))


@pytest.mark.parametrize("name", ["4", "127.0.0.1:1"])
async def test_a_worker_has_a_page_by_its_slot_and_address(browser, name):
    await browser.shows(f"/workers/{name}", "worker in slot 4")
    assert await browser.refusal("/api/workers/127.0.0.1:99") == (404, "no_worker")


async def test_another_workers_page_is_asked_of_it(worker):
    async with Browser.of(FakeWorker.with_lanes(1, slot=7)) as there, Browser.of(worker) as here:
        worker.owns({0: worker.url, 1: there.url})
        for name in ("7", there.url.partition("://")[2]):
            await here.shows(f"/workers/{name}", "worker in slot 7", f'href="/api/workers/{quote(name)}"')
        answer = (await here.json("/api/overview"))[1]
    assert sorted(each["slot"] for each in answer["workers"]) == [4, 7]


def test_a_part_reads_back_as_it_was_told(worker):
    told = worker_part(worker, RatePoller(worker), {})
    assert msgspec.json.decode(msgspec.json.encode(told), type=WorkerPart) == told


async def test_a_worker_without_lanes_is_shown_with_what_it_follows(worker):
    spare = WorkerPart(url=OTHER, slot=1, ready=True, standbys=[StandbyPart(lane=1, behind=0)])
    worker.assignment = msgspec.structs.replace(worker.assignment, members=(worker.url, OTHER))

    async def ask(owner, path, query):
        assert owner == OTHER
        return spare

    answer = await overview_of(worker, RatePoller(worker), {}, Others(ask), LastKnown(worker))
    assert {each.url for each in answer.workers} == {worker.url, OTHER}
    assert {each.grave for each in merge([part(url=OTHER, silent="no answer", owns=[])]).warnings} == {False}
    said = "It owns no lane, and copies lane 1 as a standby."
    assert said in render("overview_workers.html", answer=answer)
