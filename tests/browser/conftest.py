"""The ground, the browsers and their visitors. One loop for the browser, one file for the stack."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.browsers import launched
from tests.browser.ground import Ground, ground_in
from tests.browser.visitor import Visitor, visiting


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground_in(tmp_path_factory.mktemp("browser")) as ground:
        yield ground


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as browser:
        yield browser


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["chromium", pytest.param("firefox", marks=pytest.mark.verify("Chromium covers it"))],
)
async def each_browser(request: pytest.FixtureRequest, browser: Browser) -> AsyncIterator[Browser]:
    if request.param == "chromium":
        yield browser
        return
    async with launched(request.param) as other:
        yield other


@pytest_asyncio.fixture(loop_scope="module")
async def user(ground: Ground, each_browser: Browser) -> AsyncIterator[Visitor]:
    """A visitor with each browser, for what people come for."""
    async with visiting(each_browser, ground.address(ground.workers[0])) as visitor:
        yield visitor


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(ground: Ground, browser: Browser) -> AsyncIterator[Visitor]:
    async with visiting(browser, ground.address(ground.workers[0])) as visitor:
        yield visitor
