"""The last hour minute by minute: what is counted, and the lines of it."""

from test_web_sagas import VISITS, make_application, put_saga
from web_workers import NOW, Browser, FakeWorker

from streams.web.base.owner import ASKED_BY
from streams.web.base.view import Problem
from streams.web.overview.hours import KEPT, TOGETHER, CountsAnswer, Hours, Minutes, lines, over_time

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
        page = await browser.shows("/sagas", 'aria-label="started: 3 then, 4 now, 4 at most"')
        assert page.count("<polyline") == 1
        _, found = await browser.json("/api/over-time")
        assert [(each["name"], each["counts"]) for each in found["lines"]["sagas"]] == [("started", [3, 4])]
        _, found = await browser.json("/api/over-time", headers={ASKED_BY: "http://127.0.0.1:2"})
        assert len(found["kinds"]["sagas"]) == 2


async def test_workers_that_do_not_tell_are_named():
    async def refused(*_):
        raise Problem(404, "not_found", "there is nothing there")

    worker = FakeWorker.with_lanes(0, 1)
    worker.owns({0: worker.url, 1: worker.url, 2: "http://127.0.0.1:2"})
    own = CountsAnswer(kinds={"sagas": counted({0: {0: {"started": 1}}})})
    found = await over_time(worker, own, refused)
    assert found.untold == ["http://127.0.0.1:2"]
    assert [each.counts for each in found.lines["sagas"]] == [[1]]
