"""Rates, and the last hour minute by minute."""

from types import SimpleNamespace

import pytest
from test_web_sagas import VISITS, make_application, put_saga
from web_workers import NOW, Browser, FakeWorker, in_vain

from streams.control.base.others import Others
from streams.control.base.owner import ASKED_BY
from streams.control.base.view import Problem
from streams.control.overview.flow_part import progress
from streams.control.overview.hours import KEPT, TOGETHER, CountsAnswer, Hours, Minutes, lines, over_time
from streams.control.overview.rates import LONG, SHORT, RatePoller, Rates, RateSample, base, look, percentile
from streams.engine.staging.measures import DURATIONS, Distribution, HandlerMeasures


def test_a_rate_is_what_was_counted_between_two_looks():
    before = RateSample(NOW - 10, taken={(0, "a"): 100, (1, "a"): 7, (0, "b"): 1}, commits={0: 5})
    now = RateSample(NOW, taken={(0, "a"): 140, (1, "a"): 17, (0, "b"): 1}, commits={0: 25})
    rates = Rates(now, before)
    assert rates.topic("a") == 5.0
    assert rates.topic("b") == 0.0
    assert rates.commits(0) == 2.0


@pytest.mark.parametrize(
    ("taken", "rate"),
    [
        pytest.param({(0, "a"): 30}, 3.0, id="a counter that began again counts from nothing"),
        pytest.param({}, 0.0, id="a lane that has gone counts no more"),
    ],
)
def test_counters_that_begin_again_or_go(taken, rate):
    assert (
        Rates(RateSample(NOW, taken=taken), RateSample(NOW - 10, taken={(0, "a"): 1000})).topic("a") == rate
    )


def test_before_the_first_look_no_rate_is_known():
    rates = Rates(RateSample(NOW, taken={(0, "a"): 1000}, attempts={"h": [5, 0]}, failures={"h": 5}), None)
    assert (rates.span, rates.topic("a"), rates.handler("h"), rates.failures("h")) == (0.0, 0.0, 0.0, 0)


def test_attempts_are_counted_by_how_long_they_took():
    now = RateSample(NOW, attempts={"h": [5, 3, 1]}, failures={"h": 2})
    rates = Rates(now, RateSample(NOW - 2, attempts={"h": [1, 3, 0]}, failures={"h": 1}))
    assert rates.durations("h") == [4, 0, 1]
    assert (rates.handler("h"), rates.failures("h")) == (2.5, 1)


@pytest.mark.parametrize(("span", "before"), [(LONG, 10), (LONG / 2 - 1, 500)])
def test_a_lag_has_one_before_once_there_was_time(span, before):
    rates = Rates(RateSample(NOW, lags={"a": 500}), RateSample(NOW - span, lags={"a": 10}))
    assert (rates.lag("a"), rates.lag_before("a")) == (500, before)


@pytest.mark.parametrize(
    ("ages", "seconds", "expected"),
    [
        ([], SHORT, None),
        ([3], SHORT, 3),  # younger than wanted: better than none
        ([60, 15, 10, 5], SHORT, 10),
        ([60, 15, 12, 5], SHORT, 12),
        ([60, 30, 5], LONG, 60),
        ([0], SHORT, None),  # there is no time in between
    ],
)
def test_the_look_before_is_the_newest_that_is_old_enough(ages, seconds, expected):
    found = base([RateSample(NOW - age) for age in ages], NOW, seconds)
    assert (found and NOW - found.at) == expected


def test_looking_reads_what_lanes_and_handlers_have_counted():
    worker = FakeWorker.with_lanes(0, 1)
    worker.lanes[1].measures.intake = SimpleNamespace(
        taken_by_topic={"post.parcel.seen.v1": 9}, not_taken={"post.parcel.seen.v1": 4}
    )
    worker.handlers["post.note"] = measured = HandlerMeasures()
    measured.succeeded.add(0.0002)
    measured.failed.add(0.0002)
    seen = look(worker)
    assert seen.taken == {(1, "post.parcel.seen.v1"): 9}
    assert seen.lags == {"post.parcel.seen.v1": 4}
    assert sum(seen.attempts["post.note"]) == 2
    assert seen.failures == {"post.note": 1}
    assert seen.commits == {0: 7, 1: 7}


def test_looks_of_longer_than_a_minute_ago_are_forgotten(monkeypatch):
    worker = FakeWorker.with_lanes(0)
    looks, times = RatePoller(worker), iter(range(1000))
    monkeypatch.setattr(worker, "now", lambda: NOW + 5 * next(times))
    for _ in range(100):
        looks.keep()
    short, long = looks.rates()
    assert (short.span, long.span) == (SHORT, LONG)


# -- percentiles ------------------------------------------------------------------------------------------


def test_a_percentile_lies_between_the_bounds_of_the_values():
    found = Distribution(DURATIONS)
    for _ in range(95):
        found.add(0.0007)
    for _ in range(5):
        found.add(0.03)
    median, high = (percentile(found.counts, DURATIONS, share) for share in (0.5, 0.99))
    assert 0.0005 < median <= 0.001
    assert 0.01 < high <= 0.05


def test_nothing_has_no_percentile_and_beyond_all_bounds_the_largest():
    assert percentile([0] * 13, DURATIONS, 0.5) is None
    assert percentile([], DURATIONS, 0.5) is None
    assert percentile([0] * 12 + [3], DURATIONS, 0.5) == DURATIONS[-1]


# -- progress ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "left", "seconds", "expected"),
    [
        pytest.param(1000, 250, 10.0, (750, 1000, 75, 75.0, 3.3), id="on its way"),
        pytest.param(
            100_000, 1, 5.0, (99_999, 100_000, 99, 19_999.8, 0.0), id="never all while some is left"
        ),
        pytest.param(1000, 1000, 0.0, (0, 1000, 0, 0.0, None), id="just begun"),
        pytest.param(1000, 1200, 5.0, (0, 1200, 0, 0.0, None), id="the log grows meanwhile"),
    ],
)
def test_progress_has_a_share_a_rate_and_a_time_left(total, left, seconds, expected):
    found = progress(total, left, seconds)
    assert (found.copied, found.total, found.percent, found.rate, found.seconds_left) == expected


def test_nothing_left_is_no_progress():
    assert progress(1000, 0, 5.0) is None


NOW_MINUTE = int(NOW // 60)


def counted(minutes: Minutes) -> Minutes:
    return {NOW_MINUTE - ago: lanes for ago, lanes in minutes.items()}


def test_counts_of_all_lanes_add_up_minute_by_minute():
    first = counted({2: {0: {"started": 1}}, 1: {0: {"started": 4, "failed": 1}}, 0: {0: {"completed": 4}}})
    second = counted({2: {1: {"started": 2}}, 0: {1: {"started": 2, "completed": 1}}})
    found = {each.name: each for each in lines([first, second], NOW_MINUTE)}
    assert list(found) == ["failed", "started", "completed"]
    assert found["started"].counts == [3, 6, 2]  # a lane that was not counted is as it was
    assert found["completed"].counts == [0, 0, 5]
    assert found["failed"].most == 1


def test_a_line_begins_when_all_lanes_were_known():
    found = lines([counted({5: {0: {"started": 1}}}), counted({1: {1: {"started": 2}}})], NOW_MINUTE)
    assert [each.counts for each in found] == [[3, 3]]
    assert lines([], NOW_MINUTE) == []


def test_what_was_counted_too_early_or_late_holds_nothing_up():
    kept = counted({KEPT + 5: {3: {"started": 9}}, 1: {0: {"started": 1}}, -2: {7: {"started": 9}}})
    assert [each.counts for each in lines([kept], NOW_MINUTE)] == [[1, 1]]


def test_a_line_stays_within_its_picture():
    (line,) = lines([counted({n: {0: {"started": n * 7}} for n in range(40)})], NOW_MINUTE)
    points = [tuple(map(float, each.split(","))) for each in line.points.split()]
    assert len(points) == 40
    assert all(2 <= x <= 178 and 2 <= y <= 26 for x, y in points)
    assert points[0][1] < points[-1][1]  # there were more before, and y goes down


def test_the_last_count_of_each_minute_is_kept():
    hours = Hours()
    for second in range(0, 2 * KEPT * 60, 30):
        hours.put("sagas", NOW + second, 0, {"started": second})
        hours.put("attempts", NOW + second, TOGETHER, {"post.note": 2}, add=True)
    last = 2 * KEPT * 60 - 30
    for kind, counts in (("sagas", {0: {"started": last}}), ("attempts", {TOGETHER: {"post.note": 4}})):
        minutes = hours.kinds[kind]
        assert (len(minutes), minutes[max(minutes)]) == (KEPT, counts)


def test_what_workers_count_of_all_their_lanes_adds_up():
    found = lines([counted({1: {TOGETHER: {"post.note": n}}, 0: {}}) for n in (2, 3)], NOW_MINUTE - 1)
    assert [(each.name, each.counts) for each in found] == [("post.note", [5])]


async def test_the_page_of_sagas_draws_what_was_counted(monkeypatch):
    worker = FakeWorker.with_lanes(0, 1, 2, 3, app=make_application(), choreographed=[VISITS])
    for key in ("a", "b", "c"):
        put_saga([worker], key)
    async with Browser.of(worker) as browser:
        await browser.sampler.round()
        _, page = await browser.page("/sagas")
        assert "<polyline" not in page  # one point is no line
        monkeypatch.setattr("web_workers.NOW", NOW + 60)
        put_saga([worker], "d")
        await browser.sampler.round()
        page = await browser.shows("/sagas", 'aria-label="started: 3 at first, 4 now, highest 4"')
        assert page.count("<polyline") == 1
        _, found = await browser.json("/api/over-time")
        assert [(each["name"], each["counts"]) for each in found["lines"]["sagas"]] == [("started", [3, 4])]
        _, found = await browser.json("/api/over-time", headers={ASKED_BY: "http://127.0.0.1:2"})
        assert len(found["kinds"]["sagas"]) == 2


async def test_workers_that_do_not_tell_are_named():
    refused = in_vain(Problem(404, "not_found", "there is nothing there"))
    worker = FakeWorker.with_lanes(0, 1)
    worker.owns({0: worker.url, 1: worker.url, 2: "http://127.0.0.1:2"})
    own = CountsAnswer(kinds={"sagas": counted({0: {0: {"started": 1}}})})
    found = await over_time(worker, own, Others(refused))
    assert found.untold == ["http://127.0.0.1:2"]
    assert [each.counts for each in found.lines["sagas"]] == [[1]]
