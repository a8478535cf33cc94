"""What pages say of a fault while somebody looks: a worker frozen or killed, Kafka away. Each test logs after
how many seconds (`pytest --log-cli-level=info`); the bound of a page is 4 s without a word.
"""

import asyncio
import logging
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.ground import Ground, ground_in
from tests.browser.visitor import PATIENCE, visiting
from tests.scenarios.world import Worker

pytestmark = [
    pytest.mark.browser,
    pytest.mark.stack,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.verify("a lost worker on the page of dead letters, and unit/web, cover it"),
]

log = logging.getLogger(__name__)

#: Long enough for pages to say it, on a slow machine, too.
BROKER_IS_AWAY_FOR = 40.0
#: Seconds until another worker has the lanes of a frozen one, and nothing is missing any more: a page looks
#: several times, and waits each time for a worker that does not answer.
SESSION = 30.0
#: In the page: when it has heard of its worker last, and when the bar appeared, in epoch milliseconds.
WATCH = """
addEventListener("DOMContentLoaded", () => {
  window.seen = { heard: Date.now(), shown: 0 };
  const hear = () => { seen.heard = Date.now(); };
  for (const name of ["htmx:sseOpen", "htmx:sseBeforeMessage"]) document.addEventListener(name, hear, true);
  document.addEventListener("htmx:beforeOnLoad", (event) => event.detail.xhr.status < 400 && hear(), true);
  const bar = document.querySelector("[data-lost]");
  const look = () => { if (bar.textContent && !seen.shown) seen.shown = Date.now(); };
  new MutationObserver(look).observe(bar, { childList: true, characterData: true, subtree: true });
});
"""
GREY = "grayscale(1)"


class Record:
    """Logs seconds since the fault."""

    def __init__(self, browser: Browser) -> None:
        self.began = time.time()
        self._browser = browser.browser_type.name

    def begin(self) -> None:
        self.began = time.time()

    def __call__(self, what: str, seconds: float | None = None) -> None:
        took = time.time() - self.began if seconds is None else seconds
        log.info("%s: %s: %.2f s", self._browser, what, took)


@pytest.fixture
def seconds(each_browser: Browser) -> Record:
    return Record(each_browser)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    var = tmp_path_factory.mktemp("faults-seen")
    session = {"STEADFAUST_SESSION_TIMEOUT": str(SESSION)}
    with ground_in(var, revive_after=BROKER_IS_AWAY_FOR, **session) as ground:
        yield ground


@contextmanager
def stopped(worker: Worker) -> Iterator[None]:
    """It goes on at the end, so that a page that says nothing fails one test."""
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


@asynccontextmanager
async def looking(browser: Browser, address: str, *paths: str) -> AsyncIterator[list[Page]]:
    """Somebody with each of these pages open. Requests to a worker that is gone fail, which is no fault."""
    async with visiting(browser, address, patient=False) as visitor:
        await visitor.page.context.add_init_script(WATCH)
        pages = [visitor.page, *[await visitor.page.context.new_page() for _ in paths[1:]]]
        for page, path in zip(pages, paths, strict=True):
            page.set_default_timeout(PATIENCE)
            await page.goto(path)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
        yield pages
        visitor.wrong.clear()


async def bar_appears(page: Page, seconds: Record, what: str) -> None:
    """One bar says since when there was no word, and all else is grey."""
    bar = page.locator(".lost")
    await expect(bar).to_contain_text(re.compile(r"The worker does not answer.*at \d\d:\d\d:\d\d UTC"))
    assert await bar.count() == 1
    seen = await page.evaluate("seen")
    seconds(f"{what}: bar, since the last word", (seen["shown"] - seen["heard"]) / 1000)
    seconds(f"{what}: bar, since the fault", seen["shown"] / 1000 - seconds.began)
    parts = page.locator("main > :not(.lost, footer)")
    shown = await parts.evaluate_all("all => all.map((each) => getComputedStyle(each).filter)")
    assert set(shown) == {GREY}


async def is_well(page: Page) -> None:
    await expect(page.locator(".lost")).to_have_text("")
    assert await page.evaluate("document.documentElement.classList.contains('stale')") is False


async def says(page: Page, text: str, seconds: Record, what: str) -> None:
    await expect(page.locator("main")).to_contain_text(text)
    seconds(what)


def name_of(ground: Ground, worker: Worker) -> str:
    return ground.address(worker).partition("://")[2]


async def everywhere(pages: list[Page], name: str, seconds: Record, fault: str) -> None:
    """What the pages of one worker say of another that does not answer: overview, letters, what waits, a
    handler, sagas.
    """
    overview, letters, waiting, handler, sagas = pages
    await asyncio.gather(
        says(overview, f"The worker {name} does not answer, and owns lane", seconds, f"{fault}: overview"),
        says(overview, "Rates and lag lack lane", seconds, f"{fault}: figures of the overview"),
        says(letters, "are missing here", seconds, f"{fault}: dead letters"),
        says(waiting, "are missing here", seconds, f"{fault}: what waits"),
        says(handler, "are missing here", seconds, f"{fault}: a handler"),
        says(sagas, "are missing here", seconds, f"{fault}: sagas"),
    )


OF_ALL = ("/", "/dead-letters", "/waiting", "/handlers/payments.capture", "/sagas?status=failed")


async def test_a_frozen_worker_is_said_by_its_own_pages(
    ground: Ground, each_browser: Browser, seconds: Record
) -> None:
    worker = ground.workers[0]
    async with looking(each_browser, ground.address(worker), "/", "/dead-letters") as pages:
        await asyncio.gather(*map(is_well, pages))
        seconds.begin()
        with stopped(worker):
            for page, which in zip(pages, ("overview", "dead letters"), strict=True):
                await bar_appears(page, seconds, f"own worker frozen: {which}")
        await asyncio.gather(*map(is_well, pages))
    await asyncio.to_thread(ground.world.until_shared, ground.workers)


async def test_a_frozen_worker_is_said_by_others_pages(
    ground: Ground, each_browser: Browser, seconds: Record
) -> None:
    frozen = ground.workers[1]
    saga = await asyncio.to_thread(ground.key_of, frozen, "saga-")
    paths = (*OF_ALL, f"/sagas/order:{saga}")
    async with looking(each_browser, ground.address(ground.workers[0]), *paths) as (*pages, of_saga):
        name = name_of(ground, frozen)
        seconds.begin()
        with stopped(frozen):
            await asyncio.gather(
                everywhere(pages, name, seconds, "another worker frozen"),
                says(of_saga, f"{name}, did not answer in 1 s", seconds, "another worker frozen: its saga"),
            )
        await asyncio.gather(*map(is_well, (*pages, of_saga)))
        await expect(pages[0].locator("main")).not_to_contain_text("does not answer")
    await asyncio.to_thread(ground.world.until_shared, ground.workers)


async def test_kafka_away_is_one_sentence(ground: Ground, each_browser: Browser, seconds: Record) -> None:
    async with looking(each_browser, ground.address(ground.workers[0]), "/") as (page,):
        seconds.begin()
        ground.stack.signal_broker(1, signal.SIGKILL)
        await says(page, "Kafka does not answer", seconds, "Kafka away: overview")
        assert (await page.locator("main").inner_text()).count("does not answer") == 1
        await is_well(page)  # it is the worker that says so
        await expect(page.locator("main")).not_to_contain_text("Kafka does not answer", timeout=3 * PATIENCE)
    await asyncio.to_thread(ground.world.until_shared, ground.workers)


async def test_a_killed_worker_is_said_by_all_pages(
    ground: Ground, each_browser: Browser, seconds: Record
) -> None:
    killed = ground.workers[1]
    name = name_of(ground, killed)
    async with (
        looking(each_browser, ground.address(killed), "/", "/sagas") as own,
        looking(each_browser, ground.address(ground.workers[0]), *OF_ALL) as others,
    ):
        seconds.begin()
        killed.signal(signal.SIGKILL)
        await everywhere(others, name, seconds, "another worker killed")
        for page, which in zip(own, ("overview", "sagas"), strict=True):
            await bar_appears(page, seconds, f"own worker killed: {which}")
        lost = f"The worker {name} is lost since"
        await expect(others[0].locator("main")).to_contain_text(lost)
        ground.workers[1] = ground.world.start_worker("tests.browser.worker")
        await asyncio.to_thread(ground.world.until_shared, ground.workers)
        await expect(others[0].locator("main")).not_to_contain_text(lost)
