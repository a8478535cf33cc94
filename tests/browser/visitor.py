"""Somebody at the browser, for whom nothing may go wrong that the page does not show."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, Page, Request, Response, expect

from tests.browser.ground import OPERATOR

Scheme = Literal["light", "dark"]
#: What is wrong with a page for its readers: what axe finds, or that it is too wide.
EYES = (Path(__file__).parent / "page.js").read_text()
#: Milliseconds; pages that live ask again every two seconds, and all of it runs beside other tests.
PATIENCE = 60_000
#: So pages do not leave out what a busy machine answers late.
PATIENT = {"Steadfaust-Patience": "10"}
NARROW, WIDE = 360, 1200
COUNT_CLICKS = "addEventListener('pointerdown', () => sessionStorage.n = 1 + +(sessionStorage.n ?? 0), true)"

expect.set_options(timeout=PATIENCE)


class Visitor:
    """A page of the browser, and all that went wrong on it.

    Attributes:
        page: Playwright's.
        wrong: console errors, errors of scripts, failed requests, dialogs.
        expected: statuses that are no fault, since the test asks for them.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.wrong: list[str] = []
        self.expected: set[int] = set()
        page.set_default_timeout(PATIENCE)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)
        page.on("dialog", self._opened)

    async def look(self) -> list[str]:
        """What the eyes find wrong now."""
        await self.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
        found: list[str] = await self.page.evaluate(EYES)
        return found

    async def clicks(self) -> int:
        """How often a pointer was pressed, on all pages so far."""
        count: int = await self.page.evaluate("+(sessionStorage.n ?? 0)")
        return count

    async def search(self, words: str) -> None:
        """Type into the box that each page has, and press Enter."""
        box = self.page.get_by_role("searchbox")
        await box.fill(words)
        await box.press("Enter")

    def _said(self, message: Any) -> None:
        text = message.text
        if message.type == "error" and not any(f"status of {status}" in text for status in self.expected):
            self.wrong.append(f"console: {text}")

    def _failed(self, request: Request) -> None:
        # The browser gives up a live page's request itself when the visitor leaves the page.
        if request.failure not in ("net::ERR_ABORTED", "NS_BINDING_ABORTED"):
            self.wrong.append(f"request: {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.wrong.append(f"answer: {response.status} {response.url}")

    async def _opened(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        await dialog.dismiss()


@asynccontextmanager
async def visiting(
    browser: Browser,
    address: str,
    *,
    scheme: Scheme = "light",
    width: int = WIDE,
    script: bool = True,
    token: str = OPERATOR,
    patient: bool = True,
) -> AsyncIterator[Visitor]:
    """A visitor with no cookies, at this worker; who shows no token has to log in. One that is not `patient`
    gets answers as people do. Fails where anything was wrong meanwhile.
    """
    context = await browser.new_context(
        base_url=address,
        color_scheme=scheme,
        viewport={"width": width, "height": 800},
        java_script_enabled=script,
        extra_http_headers={
            **(PATIENT if patient else {}),
            **({"Authorization": f"Bearer {token}"} if token else {}),
        },
    )
    try:
        await context.add_init_script(COUNT_CLICKS)
        visitor = Visitor(await context.new_page())
        yield visitor
        assert not visitor.wrong, visitor.wrong
    finally:
        await context.close()
