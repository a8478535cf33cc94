"""`python -m tests.browser.screenshots`: pictures of a real stack's pages, light, dark and of a phone, in
docs/images, with the digest of each template as it was then: another one now means that its picture is old.
"""

import asyncio
import base64
import hashlib
import json
import re
import struct
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from agents.messages import OrderPlaced
from streams.local import declared_databases
from streams.postgres import Database, migrate
from tests.browser.browsers import NoBrowser, launched
from tests.browser.ground import PROJECT, Ground, ground_in
from tests.browser.visitor import Scheme, Visitor, visiting

IMAGES = Path(__file__).parents[2] / "docs" / "images"
TEMPLATES = Path(__file__).parents[2] / "streams" / "console" / "templates"
DIGESTS = IMAGES / "templates.json"
WIDTH, HEIGHT = 1440, 900
PHONE = 360, 780
#: Names of the pictures, with the templates and the addresses of the pages.
PAGES = {
    "overview": ("overview*.html", "/"),
    "timeline": ("timeline.html", "/timeline?q=placed-0"),
    "sagas": ("sagas.html", "/sagas"),
    "saga": ("saga.html", "/sagas/order:stuck-2"),
    "dead-letters": ("letter_groups.html", "/dead-letters"),
    "letters": ("letters.html", "/dead-letters/letters"),
    "jobs": ("letter_jobs.html", "/dead-letters/jobs"),
    "job": ("letter_job.html", "/dead-letters/jobs/counted"),
    "dead-letter": ("letter.html", "/dead-letters/letters?key=refused-5"),  # and on to the first of them
    "edit": ("letter_edit.html", "/dead-letters/letters?key=refused-5"),
    "undecodable": ("letter_edit.html", "/dead-letters/letters?key=undecodable-6"),
    "search": ("timeline.html", "/search?q=refused-5"),
    "audit": ("letter_audit.html", "/dead-letters/audit"),
    "handlers": ("handlers.html", "/handlers"),
    "handler": ("handler.html", "/handlers/shipping.schedule"),
    "waiting": ("waiting.html", "/waiting"),
    "outbox": ("outbox.html", "/outbox"),
    "worker": ("worker.html", "/worker"),
    "topics": ("topics.html", "/topics"),
    "topic": ("topic.html", "/topics/orders.order.confirmed.v1"),
    "record": ("record.html", "/topics/orders.order.confirmed.v1/1/0"),
    "tables": ("tables.html", "/tables"),
    "table": ("table.html", "/tables/orders"),
    "row": ("rows.html", "/tables/orders/rows?key=placed-5"),
    "history": ("history.html", "/tables/orders/history?key=placed-5"),
    "login": ("login.html", "/login"),
}
_WAITING = """
INSERT INTO outbox (
    id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time, ce_correlationid,
    schema_fingerprint, created_at
)
SELECT 'order-' || number || '-placed', 'order', 'order-' || number, $1, $1, '', 'orders-api', now()::text,
       'order-' || number, '', now() - make_interval(secs => 12 - number)
FROM generate_series(1, 5) AS number
"""
_REFUSED = """
UPDATE outbox SET attempts = 3, last_error = 'MESSAGE_TOO_LARGE: 1,203,411 bytes',
       retry_at = now() + interval '20 s'
WHERE id = 'order-1-placed'
"""
PALETTE = (Path(__file__).parent / "palette.js").read_text()
_SCHEMES: Sequence[Scheme] = ("light", "dark")


async def take(ground: Ground, folder: Path) -> None:
    """Write a picture of each page in each scheme."""
    async with Database(ground.postgres) as database, database.acquire() as connection:
        await migrate(connection)
        await connection.execute(_WAITING, OrderPlaced.TOPIC)
        await connection.execute(_REFUSED)
    async with launched() as browser:
        await _put_away(browser, ground.address(ground.workers[0]))
        for scheme in _SCHEMES:
            await _take_all(browser, ground.address(ground.workers[0]), scheme, folder)
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n")


def digests() -> dict[str, str]:
    """The digest of the templates of each picture."""
    return {
        name: hashlib.sha256(
            b"".join(path.read_bytes() for path in sorted(TEMPLATES.glob(pattern)))
        ).hexdigest()[:12]
        for name, (pattern, _) in PAGES.items()
    }


async def _take_all(browser: Browser, address: str, scheme: Scheme, folder: Path) -> None:
    blank = await browser.new_page()
    async with visiting(browser, address, scheme=scheme, width=WIDTH) as visitor:
        await visitor.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        for name, (_, path) in PAGES.items():
            await _open(visitor, name, path)
            png = await visitor.page.screenshot(animations="disabled")
            (folder / f"{name}-{scheme}.png").write_bytes(await smaller(png, blank))
            if scheme == "light":
                await visitor.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
                png = await visitor.page.screenshot(animations="disabled")
                (folder / f"{name}-phone.png").write_bytes(await smaller(png, blank))
                await visitor.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


async def _put_away(browser: Browser, address: str) -> None:
    """A letter, so that the log of operations has something to tell; and a job that counts the others."""
    async with visiting(browser, address) as visitor:
        await visitor.page.goto("/dead-letters/letters?key=refused-9")
        await visitor.page.locator("#letters tbody tr").get_by_role("link").first.click()
        await _ask(visitor.page, "Discard", "the customer has called it off")
        await expect(visitor.page.locator("#standing")).to_contain_text("discarded")
        count = {
            "operation": "replay",
            "who": "ann",
            "why": "the till is open",
            "matching": {"state": "dead"},
        }
        count |= {"job": "counted", "dry_run": True}
        assert (await visitor.page.request.post("/api/dead-letters/operations", data=count)).ok


async def _ask(page: Page, button: str, why: str) -> None:
    await page.get_by_label("Your name").fill("ann")
    await page.get_by_label("Why").fill(why)
    await page.get_by_role("button", name=button, exact=True).click()


async def _pause(page: Page, *, resume: bool = False) -> None:
    """Pause a handler, or resume it, and wait until that is so."""
    await page.goto(PAGES["handler"][1])
    await _ask(page, "Resume" if resume else "Pause", "the carrier moves house")
    await expect(page.locator("#handler")).to_contain_text("running" if resume else "paused")


async def _open(visitor: Visitor, name: str, path: str) -> None:
    page = visitor.page
    if name == "audit":
        await _pause(page)
    if name == "outbox":
        await _pause(page, resume=True)
    await page.goto(path)
    if name in ("dead-letter", "edit", "undecodable"):
        await page.locator("tbody tr").get_by_role("link").first.click()
        await page.wait_for_url("**/dead-letters/*")
    if name in ("edit", "undecodable"):
        await page.get_by_role("link", name=re.compile("Edit the message|Type it in")).click()
    if name == "overview":
        await expect(page.locator("#all-handled .spark")).to_be_visible(timeout=300_000)  # after two minutes


async def smaller(png: bytes, page: Page) -> bytes:
    """The picture as PNG with at most 256 colours; a blank page of the browser finds them."""
    found = await page.evaluate(PALETTE, base64.b64encode(png).decode())
    width, height = found["width"], found["height"]
    pixels = base64.b64decode(found["pixels"])
    unfiltered = b"".join(b"\0" + pixels[row * width : (row + 1) * width] for row in range(height))
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": bytes(found["colours"]),
        b"IDAT": zlib.compress(unfiltered, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks.items()
    )


def main() -> None:
    """Start the stack, take the pictures, end it."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    databases = declared_databases(PROJECT)
    with tempfile.TemporaryDirectory() as var, ground_in(Path(var), databases=databases) as ground:
        asyncio.run(take(ground, IMAGES))


if __name__ == "__main__":
    try:
        main()
    except NoBrowser as error:
        sys.exit(f"error: {error}")
