"""The web view in a real browser, on two real workers under load: what people come to it for."""

import asyncio
import re
import signal
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, expect

from agents.messages import OrderPlaced
from streams.console.console import ROUTES
from streams.console.page import Page as ConsolePage
from tests import effort
from tests.browser.ground import HOSTILE, IMAGE, OPERATOR, SCRIPT, VIEWER, Ground
from tests.browser.visitor import NARROW, WIDE, Visitor, visiting
from tests.scenarios.world import order

# One loop for the browser, one file for the stack: a file stays in one process.
pytestmark = [pytest.mark.browser, pytest.mark.stack, pytest.mark.asyncio(loop_scope="module")]

IN_FULL = pytest.mark.verify("a page in full: unit/web covers it, and the smoke beside it")


#: Pages with something personal in them, in a row, its versions, a message, the row of a saga.
VIEWED = (
    "/tables/orders",
    "/tables/orders/rows?key=placed-5",
    "/tables/orders/history?key=placed-5",
    "/tables/order-sagas/rows?key=saga-5",
    "/tables/order-sagas/history?key=saga-5",
    "/timeline?q=saga-5",
)


async def because(page: Page, why: str) -> None:
    """Say who one is, and why: each operation asks for both."""
    await page.get_by_label("Your name").fill("ann")
    await page.get_by_role("textbox", name="Why").fill(why)


async def to(page: Page, name: str) -> None:
    """By the links that each page has at its top."""
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()


async def test_one_search_answers_why_an_order_was_cancelled(user: Visitor) -> None:
    page = user.page
    await page.goto("/")
    await user.search("placed-0")
    answer = page.get_by_role("heading", level=1)
    await expect(answer).to_have_text("placed-0 was cancelled: card_declined")
    await expect(answer).to_be_in_viewport(ratio=1)  # of 800 px, without scrolling
    decided = page.locator(".steps > li", has=page.locator("details[open]"))
    await expect(decided).to_contain_text("payments.capture took StockReserved")
    assert await user.clicks() == 0


@IN_FULL
async def test_three_steps_pause_and_resume_a_handler(user: Visitor) -> None:
    """A search and two clicks; meanwhile one click says what waits, and why."""
    page = user.page
    await page.goto("/")
    await user.search("shipping.schedule")
    standing = page.locator("#handler")
    await expect(standing).to_contain_text("running")
    await because(page, "the vans are out")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(standing).to_contain_text(re.compile(r"is paused.*ann, .* ago: the vans are out", re.DOTALL))
    overview = await page.context.new_page()
    await overview.goto("/")
    await expect(overview.locator("main")).to_contain_text("shipping.schedule is paused in 8 partitions")
    await to(overview, "Waiting")
    waits = overview.locator("tbody tr").filter(has_text="shipping.schedule").first
    await expect(waits).to_contain_text(re.compile("paused .*by ann"))
    await expect(waits).to_be_in_viewport()
    assert await overview.evaluate("sessionStorage.n") == "1"
    await overview.close()
    await because(page, "they are back")
    await page.get_by_role("button", name="Resume", exact=True).click()
    await expect(standing).to_contain_text("running")
    assert await user.clicks() == 2


async def test_a_form_that_is_replaced_keeps_what_was_typed(user: Visitor) -> None:
    page = user.page
    await page.goto("/handlers/shipping.schedule?asked=pause")  # nobody did: it is replaced for ever
    await because(page, "the vans are out")
    first = page.locator("#act[data-first]")
    await page.locator("#act").evaluate("each => each.setAttribute('data-first', '')")
    await expect(first).to_have_count(0)
    why = page.get_by_role("textbox", name="Why")
    await expect(why).to_have_value("the vans are out")
    await expect(why).to_be_focused()
    await expect(page.get_by_label("Your name")).to_have_value("ann")


@IN_FULL
async def test_four_clicks_lead_from_a_topic_over_a_row(user: Visitor) -> None:
    page = user.page
    await page.goto("/topics/orders.order.cancelled.v1")
    await page.get_by_label("Key", exact=True).fill("placed-0")
    await page.get_by_label("Key", exact=True).press("Enter")
    found = page.locator("tbody tr").filter(has_text="placed-0")
    await expect(found).to_have_count(1)
    await found.get_by_role("link").first.click()
    await expect(page.locator("body")).to_contain_text("card_declined")
    await page.get_by_role("link", name="History of placed-0").click()
    await page.get_by_role("complementary").get_by_role("link", name="orders", exact=True).click()
    versions = page.locator("#history .versions > li")  # it comes by itself
    cancelled = versions.filter(has=page.locator("del", has_text="pending"))
    await expect(cancelled).to_contain_text("card_declined")
    await expect(versions.last).to_contain_text("The first version that was found")
    await cancelled.get_by_role("link", name=re.compile("offset")).click()
    await expect(page.locator("body")).to_contain_text("orders-changelog")
    assert await user.clicks() == 4


@IN_FULL
async def test_the_timeline_leads_from_each_message_to_its_cause(visitor: Visitor) -> None:
    page = visitor.page
    await page.goto("/")
    await visitor.search("saga-5")
    steps = page.locator(".steps > li")
    await expect(steps.first).to_contain_text("OrderSubmitted")
    took = [text.rpartition(" ")[2] for text in await steps.locator("summary b").all_text_contents()]
    ways = [each for each in took if each in ("ReserveStock", "CapturePayment", "ScheduleShipment")]
    assert ways == ["ReserveStock", "CapturePayment", "ScheduleShipment"]
    confirmed = steps.filter(has=page.locator("b", has_text=re.compile("orders.settle took ConfirmOrder$")))
    await confirmed.locator("summary").click()
    await confirmed.get_by_role("link", name=re.compile(r"no\. \d+")).click()
    cause = page.locator(".steps > li:target")
    await expect(cause).to_contain_text("OrderSagaReply")


@IN_FULL
async def test_ids_of_messages_and_correlations_lead_to_the_order(visitor: Visitor) -> None:
    page = visitor.page
    await page.goto("/")
    await visitor.search("message-placed-5")
    await expect(page.locator(".steps").first).to_contain_text("OrderPlaced")
    await expect(page.locator("body")).to_contain_text("placed-5")


@pytest.mark.promise("saga-operations", "on real Kafka")
@IN_FULL
async def test_a_failed_saga_is_found_and_settled(ground: Ground, visitor: Visitor) -> None:
    page = visitor.page
    await page.goto("/")
    await to(page, "Sagas")
    await page.get_by_label("Status").select_option("failed")
    await page.get_by_role("button", name="List").click()
    await page.get_by_role("link", name="order:stuck-2").click()
    await expect(page.locator("body")).to_contain_text("the till is closed")
    await expect(page.locator("body")).to_contain_text("process_payment could not be undone")
    ground.till.touch()
    await because(page, "the till is open")
    await page.get_by_role("button", name="Try the compensation again").click()
    await expect(page.locator("#facts")).to_contain_text("compensated")  # without reloading
    await expect(page.get_by_role("button", name="Try the compensation again")).to_be_hidden()
    await expect(page.locator("#steps")).to_contain_text("the till is open (ann)")
    ground.till.unlink()


async def one_more_letter(ground: Ground, page: Page, number: int, name: str) -> str:
    """An order of which payments.capture gives up on a message; its id."""
    again = order(number, f"refused-{name}")[0]
    await asyncio.to_thread(ground.world.send, [(OrderPlaced(order=again), f"message-{again.order_id}")])
    await page.goto(f"/dead-letters/letters?key={again.order_id}")
    await expect(page.locator("#letters")).to_contain_text("payments.capture")  # without reloading
    return again.order_id


async def test_a_dead_letter_is_replayed_and_its_order_confirms(ground: Ground, visitor: Visitor) -> None:
    page = visitor.page
    key = await one_more_letter(ground, page, 5, "replayed")
    await page.goto("/")
    await to(page, "Dead letters")
    groups = page.locator("#groups tbody tr")
    await groups.filter(has_text="payments.capture").get_by_role("link", name=re.compile(r"^\d+$")).click()
    letter = page.locator("#letters tbody tr").filter(has_text=key)
    await letter.get_by_role("link").first.click()
    await expect(page.locator("#standing")).to_contain_text("the till is closed")
    ground.till.touch()
    await because(page, "the till is open")
    await page.get_by_role("button", name="Replay").click()
    standing = page.locator("#standing")
    await expect(standing).to_contain_text("Resolved: it is no longer a dead letter")  # without reloading
    await page.get_by_role("link", name=f"History of {key}").first.click()
    await expect(page.locator("main")).to_contain_text("OrderConfirmed")
    ground.till.unlink()


async def test_a_dead_letter_is_edited_and_shows_its_changes(ground: Ground, visitor: Visitor) -> None:
    page = visitor.page
    key = await one_more_letter(ground, page, 7, "edited")
    await page.locator("#letters tbody tr").get_by_role("link").first.click()
    await page.get_by_role("link", name="Edit the message").click()
    cents = page.get_by_label("order.total_cents")
    assert await cents.input_value() == "107"
    await cents.fill("4711")
    await page.get_by_role("button", name="Show what changes", exact=True).click()
    await expect(page.locator(".diff .del")).to_contain_text('"total_cents": 107')
    await expect(page.locator(".diff .add")).to_contain_text('"total_cents": 4711')
    ground.till.touch()
    await because(page, "the price was wrong")
    await page.get_by_role("button", name="Replay with this change").click()
    await expect(page.locator("#standing")).to_contain_text("Resolved: it is no longer a dead letter")
    await expect(page.get_by_role("button", name="Discard")).to_be_hidden()
    await page.get_by_role("link", name="What operators did", exact=True).click()
    await expect(page.locator("tbody")).to_contain_text("the price was wrong")
    await page.goto(f"/timeline?q={key}")
    await expect(page.locator("main")).to_contain_text("4711")
    ground.till.unlink()


@IN_FULL
async def test_four_clicks_replay_all_of_one_error_with_its_result(ground: Ground, user: Visitor) -> None:
    page = user.page
    await one_more_letter(ground, page, 8, page.context.browser.browser_type.name)  # type: ignore[union-attr]
    await page.goto("/")
    await to(page, "Dead letters")
    groups = page.locator("#groups tbody tr")
    await groups.filter(has_text="payments.capture").get_by_role("link", name=re.compile(r"^\d+$")).click()
    await because(page, "the till is open")
    await page.get_by_role("button", name="Count them first").click()
    await expect(page.locator("#job")).to_contain_text("match, 0 operations sent")  # without reloading
    ground.till.touch()
    replay = page.get_by_role("button", name=re.compile("^Replay"))
    count = re.findall(r"\d+", await replay.inner_text())[0]
    await replay.click()
    await expect(page.locator("#job")).to_contain_text(f"{count} handled")
    assert await user.clicks() == 4
    await expect(page.locator("progress")).to_have_attribute("value", "4")  # of 4 lanes
    await page.goto("/dead-letters/letters?handler=payments.capture")
    await expect(page.locator("#letters")).to_contain_text("None here")
    ground.till.unlink()


@IN_FULL
async def test_a_viewer_sees_who_nobody_is(ground: Ground, browser: Browser) -> None:
    """What is marked as personal is masked wherever it stands: the customer, and the card."""
    async with visiting(browser, ground.address(ground.workers[0]), token=VIEWER) as visitor:
        page = visitor.page
        for path in VIEWED:
            await page.goto(path)
            await expect(page.locator("body")).to_contain_text("(masked)")
            shown = await page.content()
            assert "customer-" not in shown, path
            assert "tok_" not in shown, path
            assert await page.locator("form[method=post]").count() == 0


@IN_FULL
async def test_a_table_is_read_across_both_workers(ground: Ground, visitor: Visitor) -> None:
    page = visitor.page
    for worker in ground.workers:
        key = await asyncio.to_thread(ground.key_of, worker)
        await page.goto("/tables")
        await page.get_by_role("link", name="orders", exact=True).click()
        await page.get_by_label("Key", exact=True).fill(key)
        await page.get_by_role("button", name="Look up").click()
        await expect(page.locator("body")).to_contain_text("confirmed")
        await expect(page.locator("body")).to_contain_text(key)


async def log_in(page: Page, token: str) -> None:
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Log in").click()


async def test_people_log_in_and_out_and_a_viewer_changes_nothing(ground: Ground, browser: Browser) -> None:
    async with visiting(browser, ground.address(ground.workers[1]), token="") as visitor:
        page = visitor.page
        visitor.expected.update({401, 403})
        await page.goto("/login")
        await log_in(page, "another-token-than-theirs")
        await expect(page.locator("body")).to_contain_text("wrong token")
        await page.goto("/dead-letters/letters")
        await page.get_by_role("link", name="Log in").click()
        await log_in(page, VIEWER)
        await page.locator("tbody tr").filter(has_text="undecodable-6").get_by_role("link").first.click()
        await expect(page.locator("#standing")).to_contain_text("cannot be decoded")
        token = await page.locator("form.leave input[name=csrf]").input_value()
        wanted = {
            "csrf": token,
            "operation": "discard",
            "who": "eve",
            "why": "to see",
            "key": "undecodable-6",
        }
        refused = await page.request.post(page.url, form=wanted)
        assert refused.status == 403
        assert "you may look, and change nothing" in await refused.text()
        await page.reload()
        await expect(page.locator("body")).to_contain_text("Nothing yet.")
        await page.get_by_role("button", name="Log out (viewer)").click()
        await log_in(page, OPERATOR)
        await expect(page.get_by_role("button", name="Log out (operator)")).to_be_visible()
        await page.goto("/dead-letters/letters")
        await page.locator("tbody tr").filter(has_text="undecodable-6").get_by_role("link").first.click()
        await expect(page.get_by_role("button", name="Discard")).to_be_visible()


@IN_FULL
async def test_the_overview_is_live_until_it_is_paused(visitor: Visitor) -> None:
    page = visitor.page
    await page.goto("/")
    flow = page.locator(".flow")
    await expect(flow).to_contain_text("payments")
    await page.evaluate("document.querySelector('.flow').id = 'first'")
    await expect(page.locator("#first")).to_have_count(0)  # another has come, without reloading
    await expect(flow).to_have_count(1)
    await page.get_by_role("button", name="Pause updates").click()
    await expect(page.get_by_role("button", name="Go live")).to_be_visible()


async def test_what_is_hostile_is_text(visitor: Visitor) -> None:
    page = visitor.page
    await page.goto("/")
    await visitor.search(HOSTILE)
    await expect(page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    await expect(page.locator("main")).to_contain_text(SCRIPT)
    escaped = quote(HOSTILE, safe="")
    await page.goto(f"/tables/orders/rows?key={escaped}")
    await expect(page.locator("body")).to_contain_text(IMAGE)
    await page.goto("/dead-letters/letters?key=undecodable-6")
    await page.locator("tbody tr").get_by_role("link").first.click()
    await expect(page.locator("body")).to_contain_text(f"undecodable-{SCRIPT}")
    assert await page.evaluate("window.ran") is None
    assert await page.locator("img").count() == 0


async def test_the_keyboard_alone_reaches_search_and_its_results(visitor: Visitor) -> None:
    page = visitor.page
    await page.goto("/tables")

    async def tab_to(selector: str) -> None:
        for _ in range(40):
            await page.keyboard.press("Tab")
            if await page.evaluate("name => document.activeElement.matches(name)", selector):
                break
        else:
            raise AssertionError(f"Tab does not reach {selector}")
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline not in ("none", ""), f"one does not see that {selector} has the focus"

    await tab_to("input[type=search]")
    await page.keyboard.type("placed-5")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("placed-5")
    await tab_to(".skip")
    await page.keyboard.press("Enter")
    await tab_to(".gantt a[href^='#']")
    await page.keyboard.press("Enter")
    await expect(page.locator(".steps > li:target")).to_be_visible()


#: Every page: an address that has something to show, and the link to follow there if its own has an id.
PAGES = {
    "/": ["/"],
    "/login": ["/login"],
    "/worker": ["/worker"],
    "/workers/{worker}": ["/workers/1"],
    "/search": ["/search", "/search?q=refused"],
    "/timeline": ["/timeline?q=saga-2", f"/timeline?q={quote(HOSTILE, safe='')}", "/timeline?q=nobody"],
    "/sagas": ["/sagas"],
    "/sagas/{saga}": ["/sagas/order:saga-2", "/sagas/order:stuck-2"],
    "/waiting": ["/waiting"],
    "/dead-letters": ["/dead-letters"],
    "/dead-letters/letters": ["/dead-letters/letters?state=dead"],
    "/dead-letters/{letter}": ["/dead-letters/letters?key=undecodable-6 #letters th a"],
    "/dead-letters/{letter}/edit": ["/dead-letters/letters?key=undecodable-6 #letters th a text=Type it in"],
    "/dead-letters/jobs": ["/dead-letters/jobs"],
    "/dead-letters/jobs/{job}": ["/dead-letters/jobs/counted"],
    "/dead-letters/audit": ["/dead-letters/audit"],
    "/handlers": ["/handlers"],
    "/handlers/{handler}": ["/handlers/payments.capture"],
    "/topics": ["/topics"],
    "/topics/{topic}": ["/topics/orders.order.confirmed.v1"],
    "/topics/{topic}/{partition}/{offset}": ["/topics/orders.order.confirmed.v1/1/0"],
    "/outbox": ["/outbox"],
    "/tables": ["/tables"],
    "/tables/{table}": ["/tables/orders"],
    "/tables/{table}/rows": ["/tables/orders/rows?key=placed-5"],
    "/tables/{table}/history": ["/tables/order-sagas/history?key=saga-5"],
}
#: In `make test`; the others are made of the same parts.
SMOKE = ("/", "/timeline", "/dead-letters", "/tables/{table}/rows", "/login")


async def test_every_page_of_the_site_is_looked_at() -> None:
    assert PAGES.keys() == {route.path for route in ROUTES if isinstance(route, ConsolePage)}


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(address, marks=() if path in SMOKE and address == addresses[0] else IN_FULL)
        for path, addresses in PAGES.items()
        for address in addresses
    ],
)
async def test_each_page_is_readable_narrow_and_wide_dark_and_light(
    ground: Ground, browser: Browser, address: str
) -> None:
    async with visiting(browser, ground.address(ground.workers[0])) as visitor:
        page = visitor.page
        start, *links = re.split(r" (?=#|text=)", address)
        if start.endswith("/counted"):
            counted = {"operation": "replay", "who": "ann", "why": "to see", "matching": {"state": "dead"}}
            await page.request.post(
                "/api/dead-letters/operations", data={**counted, "job": "counted", "dry_run": True}
            )
        await page.goto(start)
        for link in links:
            await page.locator(link).first.click()
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        for width in (NARROW, WIDE):
            await page.set_viewport_size({"width": width, "height": 800})
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                assert await visitor.look() == []


@pytest.mark.parametrize(
    "address", ["/", "/timeline?q=placed-5", "/sagas", "/dead-letters", "/tables/orders"]
)
async def test_a_page_waits_for_nothing(visitor: Visitor, address: str) -> None:
    """The least of a few: the others say what else the machine was doing. What waits for a silent worker, or
    for a fetch to end, takes longer; `python -m benchmarks.pages` measures how long pages take.
    """
    took = []
    for _ in range(5):
        await visitor.page.goto(address)
        took.append(
            await visitor.page.evaluate(
                "(([page]) => page.responseEnd - page.startTime)(performance.getEntriesByType('navigation'))"
            )
        )
    assert not effort.is_all() or min(took) < 1000, took


async def test_pages_work_without_script(ground: Ground, browser: Browser) -> None:
    async with visiting(browser, ground.address(ground.workers[0]), script=False) as visitor:
        await visitor.page.goto("/")
        await visitor.search("placed-0")
        await expect(visitor.page.locator("main")).to_contain_text("OrderCancelled")


@IN_FULL
async def test_what_is_not_there_is_said(visitor: Visitor) -> None:
    visitor.expected.add(404)
    await visitor.page.goto("/tables/no-such-table")
    await expect(visitor.page.locator("body")).to_contain_text("no-such-table")
    await visitor.page.goto("/timeline?q=nobody-has-seen-it")
    await expect(visitor.page.locator("body")).to_contain_text("No message was found")


async def test_a_worker_is_lost_while_somebody_looks(ground: Ground, visitor: Visitor) -> None:
    """The last test: from here on there is one worker."""
    page = visitor.page
    lost = ground.workers[1]
    key = await asyncio.to_thread(ground.key_of, lost)
    groups = page.locator("#groups")
    await page.goto("/dead-letters")
    await expect(groups).to_contain_text("Undecodable")
    lost.signal(signal.SIGKILL)
    await expect(groups).to_contain_text("are missing here")  # without reloading
    await asyncio.to_thread(ground.world.until_shared, ground.workers[:1])
    await expect(groups).not_to_contain_text("are missing here")
    await expect(page.locator(".lost")).to_have_text("")  # its own worker has answered all the time
    await page.goto(f"/tables/orders/rows?key={quote(key, safe='')}")
    await expect(page.locator("body")).to_contain_text("confirmed")
