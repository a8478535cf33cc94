"""Other machines are answered by the token of the application alone; this one as ever."""

import time
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import product

import pytest
from test_web_row_changes import version
from web_workers import NOW, Browser, FakeWorker, bearer

from agents.worker import CHOREOGRAPHIES
from streams.control.api import writing as writing_module
from streams.control.base import access as access_module
from streams.control.base.access import AT_ONCE, EVERY, Access, Incoming, LoginThrottle, Role
from streams.control.base.sessions import LASTS, SESSION, opened
from streams.control.base.view import Problem
from streams.host.ended_sessions import EndedSessions
from streams.model.application import Application
from streams.model.codecs import json_without_schema
from streams.model.layout import Layout
from streams.model.personal import masked, personal_fields
from streams.system.loopback import peer_origin

TOKEN = "a-token-of-this-application"


def seen(access: Access, incoming: Incoming) -> tuple[str, str]:
    """Role and name of whoever asks, or the word with which he is refused."""
    try:
        visitor = access.visitor(incoming)
    except Problem as problem:
        return problem.error, ""
    return visitor.role, visitor.name


def refused(
    token: str = TOKEN,
    *,
    address: str = "10.0.0.7",
    path: str = "/api/worker",
    host: str = "10.0.0.7:6066",
    shown: str = "",
) -> str:
    """The word with which a request to this address is refused; nothing if it is not."""
    headers = {"Host": host, **({"Authorization": shown} if shown else {})}
    role, _ = seen(Access(token), Incoming(address, "10.0.0.9", path, headers, {}))
    return "" if role in set(Role) else role


def test_another_machine_shows_the_token():
    assert refused(shown=f"Bearer {TOKEN}") == ""


@pytest.mark.parametrize(
    "shown",
    [f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", TOKEN, "Bearer", "Basic eA==", "Bearer ä", "Bearer \udce4"],
)
def test_another_machine_is_refused_with_another_token(shown):
    assert refused(shown=shown) == "wrong_token"


@pytest.mark.parametrize("path", ["/", "/api/worker", "/metrics", "/tables", "/health/live/../../api/worker"])
def test_another_machine_is_refused_without_a_token(path):
    assert refused(path=path) == "no_token"
    assert refused(address="::ffff:10.0.0.7", path=path) == "no_token"
    assert refused(path=path, host="localhost") == "no_token"


@pytest.mark.parametrize("shown", ["", "Bearer ", "Bearer x"])
def test_no_token_is_right_where_the_application_has_none(shown):
    assert refused("", shown=shown) != ""


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_supervisors_need_no_token(path):
    assert refused(path=path) == ""


def test_this_machine_needs_no_token_under_its_own_names():
    assert refused(address="127.0.0.1", host="127.0.0.1:6066") == ""
    assert refused(address="127.0.0.1", host="web.example:6066") == "foreign_host"


def test_no_text_has_the_token():
    assert TOKEN not in repr(Access(TOKEN))


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(access_module, "compare_digest", lambda *both: compared.append(both))
    assert refused(shown="Bearer x") == "wrong_token"
    assert compared == [(b"x", TOKEN.encode())]


@pytest.mark.parametrize(
    ("url", "own", "origin"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:1"),
        ("http://10.0.0.7:1/x", "http://10.0.0.8:2", "http://10.0.0.7:1"),
        ("http://[fd00::7]:1", "http://[fd00::8]:2", "http://[fd00::7]:1"),
        # Somebody else has that address here: asking would be asking the wrong one.
        ("http://127.0.0.1:1", "http://10.0.0.8:2", None),
        ("http://10.0.0.7:1", "http://127.0.0.1:2", None),
        ("https://10.0.0.7:1", "http://10.0.0.8:2", None),
        ("junk", "http://10.0.0.8:2", None),
        ("", "http://10.0.0.8:2", None),
    ],
)
def test_workers_are_asked_where_they_can_be_reached(url, own, origin):
    assert peer_origin(url, own) == origin


@pytest.fixture
async def browser(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browser]:
    monkeypatch.setattr(access_module, "is_loopback", lambda host: False)
    async with Browser.of(FakeWorker.with_lanes(0), Access(TOKEN)) as browser:
        yield browser


async def test_a_refusal_is_401_and_says_what_to_send(browser):
    async with browser.get("/api/worker") as response:
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "STEADFAUST_WEB_TOKEN" in (await response.json())["detail"]
        assert TOKEN not in await response.text()
    async with browser.get("/tables") as response:
        assert response.status == 401
        assert "STEADFAUST_WEB_TOKEN" in await response.text()


async def test_with_the_token_every_page_is_answered(browser):
    assert (await browser.json("/api/worker", headers=Access(TOKEN).headers))[0] == 200


# -- logging in ------------------------------------------------------------------------------------------

VIEWER = "a-token-of-those-who-look"


@pytest.fixture
def letter(worker: FakeWorker) -> str:
    worker.put("k1", note="for Ada")
    return worker.put_letter("k1", why="no stamp")


@pytest.fixture
async def near(worker: FakeWorker) -> AsyncIterator[Browser]:
    async with Browser.of(worker, Access(TOKEN, VIEWER, login=True)) as browser:
        yield browser


async def test_people_log_in_with_the_token_and_out_again(near):
    status, page = await near.page("/tables")
    assert status == 401
    assert 'href="/login?next=%2Ftables"' in page or 'href="/login?next=/tables"' in page
    assert (await near.send("/login", token=TOKEN, next="/tables"))[:2] == (303, "/tables")
    status, page = await near.page("/tables")
    assert (status, "Log out (operator)" in page) == (200, True)
    assert (await near.send("/logout"))[:2] == (303, "/login")
    assert (await near.page("/tables"))[0] == 401


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
async def test_a_wrong_token_logs_nobody_in(near, token, monkeypatch):
    monkeypatch.setattr("streams.console.login.WRONG_TAKES", 0.01)
    status, _, page = await near.send("/login", token=token)
    assert (status, "wrong token" in page) == (401, True)
    assert (await near.page("/tables"))[0] == 401


@pytest.mark.parametrize(
    "there",
    [
        *("//shop.example", "http://shop.example", "/\\shop.example", "javascript:1"),
        *("/\t/shop.example", "/\n/shop.example", "\t//shop.example", "/a\r\nSet-Cookie: a=b"),
    ],
)
async def test_a_login_leads_nowhere_but_to_the_worker(near, there):
    assert (await near.send("/login", token=TOKEN, next=there))[1] == "/"


async def test_a_login_leads_to_any_page_of_the_worker(near):
    there = "/tables/a b\\c/rows?key=\u00f6%0A&limit=1#end"
    led = await near.send("/login", token=TOKEN, next=there)
    assert led[:2] == (303, "/tables/a%20b%5Cc/rows?key=%C3%B6%0A&limit=1#end")


@pytest.mark.parametrize(
    "header",
    [
        {"X-Forwarded-Proto": "https"},
        {"X-Forwarded-Proto": "HTTPS, http"},
        {"Forwarded": 'for=10.0.0.1;proto="https", for=10.0.0.2'},
    ],
)
async def test_cookies_are_for_tls_alone_where_a_proxy_ends_it(near, header):
    async with near.get("/login", headers={"X-Forwarded-Proto": "http"}) as answer:
        assert "Secure" not in answer.headers["Set-Cookie"]
    near.forget()
    async with near.get("/login", headers=header) as answer:
        assert "Secure" in answer.headers["Set-Cookie"]


async def test_a_viewer_looks_and_changes_nothing(near, worker, letter):
    asked = {"operation": "replay", "who": "eve", "why": "why not"}
    await near.send("/login", token=VIEWER)
    await near.shows(f"/dead-letters/{letter}", "no stamp", hides="Replay")
    status, _, page = await near.send(f"/dead-letters/{letter}", **asked)
    assert (status, "read only" in page) == (403, True)
    for headers in ({}, bearer(VIEWER)):
        body = {**asked, "letters": [letter]}
        assert (await near.ask("/api/dead-letters/operations", body, **headers))[0] == 403
    assert worker.asked == []
    assert (await near.page("/tables"))[0] == 200
    assert (await near.send("/logout"))[0] == 303


HERE = "10.0.0.9"


def session_of(access: Access, token: str) -> str:
    found = access.log_in(token, HERE, "")
    assert found is not None
    return found[0]


def role_in(access: Access, session: str) -> str:
    return seen(access, Incoming("127.0.0.1", "", "/", {"Host": "localhost"}, {SESSION: session}))[0]


async def test_a_session_is_of_one_token_role_and_time():
    access = Access(TOKEN, VIEWER, login=True, now=lambda: NOW)
    shown = session_of(access, VIEWER)
    assert role_in(access, shown) == "viewer"
    said, _, signature = shown.partition(".")
    forged = urlsafe_b64encode(urlsafe_b64decode(said).replace(b"viewer", b"operator")).decode()
    for other in (f"{forged}.{signature}", f"{said}.", said, "", ".", "ä.ä", f"{said}.{signature}x"):
        assert role_in(access, other) == "no_token"
    assert (
        role_in(Access("another-token-of-theirs", VIEWER, login=True, now=lambda: NOW), shown) == "no_token"
    )
    assert role_in(Access(TOKEN, "another-token-to-look", login=True, now=lambda: NOW), shown) == "no_token"
    assert role_in(Access(TOKEN, VIEWER, login=True, now=lambda: NOW + LASTS), shown) == "no_token"


# -- sessions that were ended ----------------------------------------------------------------------------


async def test_a_copied_session_is_over_after_the_logout(near, worker):
    await near.send("/login", token=TOKEN)
    jar = near._session.cookie_jar
    copied = {each.key: each.value for each in jar}
    assert (await near.send("/logout"))[0] == 303
    near.forget()
    jar.update_cookies(copied, near.make_url("/"))
    assert (await near.page("/tables"))[0] == 401
    ((ident, until),) = worker.ended_sessions
    assert ident
    assert until > time.time()


def test_another_worker_refuses_a_session_that_was_ended():
    ended = EndedSessions()
    here, there = Access(TOKEN, login=True), Access(TOKEN, login=True, ended=ended)
    shown, other = session_of(here, TOKEN), session_of(here, TOKEN)
    session = opened(here._key("operator"), shown, 0.0)
    assert session is not None
    assert role_in(there, shown) == "operator"
    ended.add(session.ident, session.until, 0.0)
    assert (role_in(there, shown), role_in(there, other)) == ("no_token", "operator")


def test_no_session_is_believed_before_all_logouts_are_known():
    ended = EndedSessions(is_complete=False)
    access = Access(TOKEN, login=True, ended=ended)
    shown = session_of(access, TOKEN)
    assert role_in(access, shown) == "not_now"
    ended.is_complete = True
    assert role_in(access, shown) == "operator"


def test_sessions_that_are_over_anyhow_are_forgotten():
    ended = EndedSessions()
    ended.add("a", 10.0, 0.0)
    ended.add("b", 30.0, 20.0)
    assert ("a" in ended, "b" in ended) == (False, True)


async def test_a_login_gives_forms_another_token(near):
    await near.page("/login")
    before = near.csrf
    await near.send("/login", token=TOKEN)
    assert near.csrf != before


# -- too many wrong tokens -------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr("streams.console.login.WRONG_TAKES", 0.0)
    return [0.0]


@pytest.fixture
async def guarded(worker: FakeWorker, clock: list[float]) -> AsyncIterator[Browser]:
    """Of a worker on this machine that wants a login, by its own clock, behind a proxy that it believes."""
    tries = LoginThrottle(lambda: clock[0])
    access = Access(TOKEN, VIEWER, login=True, proxies=frozenset({"127.0.0.1"}), tries=tries)
    async with Browser.of(worker, access) as browser:
        yield browser


async def test_a_login_has_few_tries_then_the_right_one_waits(guarded, clock):
    for _ in range(AT_ONCE):
        assert (await guarded.send("/login", token="wrong"))[0] == 401
    status, _, page = await guarded.send("/login", token=TOKEN)
    assert (status, "wait 6 s" in page) == (429, True)
    clock[0] = EVERY
    assert (await guarded.send("/login", token=TOKEN))[0] == 303


@pytest.mark.parametrize(
    "path", ["/api/worker", "/api/no/such/path", "/tables", "/metrics", "/live/overview"]
)
async def test_a_bearer_has_few_tries_on_every_path(guarded, path):
    async def status(token: str, method: str = "GET") -> int:
        async with guarded.request(method, path, headers=bearer(token)) as response:
            if response.status == 429:
                assert int(response.headers["Retry-After"]) == EVERY
            return int(response.status)

    assert {await status(f"wrong-{n}") for n in range(AT_ONCE)} == {401}
    # The right one is not told from a wrong one: not by its answer, whatever is asked and how.
    for method in ("GET", "DELETE", "OPTIONS", "HEAD"):
        assert [await status(token, method) for token in ("wrong", TOKEN)] == [429, 429]


def test_a_token_is_not_compared_when_there_are_no_tries(monkeypatch):
    access = Access(TOKEN, tries=LoginThrottle(lambda: 0.0))
    for _ in range(AT_ONCE):
        access.role_of("wrong", HERE)
    monkeypatch.setattr(access_module, "compare_digest", lambda *_: pytest.fail("compared"))
    with pytest.raises(Problem) as refused:
        access.role_of(TOKEN, HERE)
    assert refused.value.status == 429


async def test_a_stranger_locks_out_nobody_elsewhere(guarded):
    stranger, other = {"X-Forwarded-For": "203.0.113.9"}, {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}
    for _ in range(AT_ONCE + 3):
        await guarded.refusal("/api/worker", headers={**bearer("wrong"), **stranger})
    assert (await guarded.refusal("/api/worker", headers={**bearer(TOKEN), **stranger}))[0] == 429
    assert (await guarded.json("/api/worker", headers={**bearer(TOKEN), **other}))[0] == 200


async def test_a_stranger_at_its_address_keeps_out_no_known_browser(guarded):
    await guarded.send("/login", token=TOKEN)
    for _ in range(AT_ONCE):
        await guarded.refusal("/api/worker", headers=bearer("wrong"), cookies={SESSION: ""})
    assert (await guarded.page("/tables"))[0] == 200  # who is logged in is not asked for a token
    await guarded.send("/logout")
    assert (await guarded.send("/login", token=TOKEN))[0] == 303
    guarded.forget()
    assert (await guarded.send("/login", token=TOKEN))[0] == 429


def refused_tries(access: Access, browsers: int, minted_with: str, known: str = "") -> list[int]:
    """How many wrong tokens each of so many browsers has tried that one token has made known, until it was
    refused or had tried more than are free.
    """
    counts = []
    for _ in range(browsers):
        found = access.log_in(minted_with, HERE, known)
        assert found is not None
        tried = 0
        with suppress(Problem):
            while tried <= AT_ONCE:
                assert access.log_in("wrong", HERE, found[1]) is None
                tried += 1
        counts.append(tried)
    return counts


def test_a_viewer_gets_no_more_tries_by_logging_in_again():
    access = Access(TOKEN, VIEWER, tries=LoginThrottle(lambda: 0.0))
    assert refused_tries(access, 3, VIEWER) == [AT_ONCE, 0, 0]
    # Elsewhere, and for those who need no more tries, there is no lock.
    assert refused_tries(access, 2, TOKEN) == [AT_ONCE, AT_ONCE]


def test_a_browser_is_known_by_its_best_role():
    access = Access(TOKEN, VIEWER, now=lambda: NOW, tries=LoginThrottle(lambda: 0.0))
    _, viewers = access.log_in(VIEWER, HERE, "") or ("", "")
    _, operators = access.log_in(TOKEN, HERE, viewers) or ("", "")
    assert operators != viewers
    assert (access.log_in(VIEWER, HERE, operators) or ("", ""))[1] == operators
    said, _, signature = viewers.partition(".")
    forged = urlsafe_b64encode(urlsafe_b64decode(said).replace(b"viewer", b"operator")).decode()
    for _ in range(AT_ONCE):
        access.log_in("wrong", HERE, "")
    for shown in (f"{forged}.{signature}", said, "", "x"):
        with pytest.raises(Problem):
            access.log_in(TOKEN, HERE, shown)
    # A stranger at their address locks out neither.
    assert access.log_in(VIEWER, HERE, viewers)
    assert access.log_in(TOKEN, HERE, operators)


async def test_neither_no_token_nor_another_scheme_is_a_try(guarded):
    for headers in ({}, {"Authorization": "Basic eA=="}) * AT_ONCE:
        assert (await guarded.refusal("/api/worker", headers=headers))[0] == 401
    assert (await guarded.json("/api/worker", headers=bearer(TOKEN)))[0] == 200


async def test_what_nobody_sends_to_a_login_may_not_be_large(guarded):
    assert (await guarded.send("/login", token="x" * 10_000))[0] == 413
    assert (await guarded.send("/login", token="x" * 2_000))[0] == 401


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.5", "1.1.1.1, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.5", "198.51.100.7, 10.0.0.6", "198.51.100.7"),
        ("10.0.0.5", "junk", "10.0.0.5"),
        ("10.0.0.5", "10.0.0.6", "10.0.0.5"),
        ("203.0.113.9", "198.51.100.7", "203.0.113.9"),
    ],
)
def test_only_a_proxy_of_ours_says_who_the_client_is(peer, forwarded, client):
    assert access_module.client_of(peer, forwarded, frozenset({"10.0.0.5", "10.0.0.6"})) == client


@pytest.mark.parametrize(
    ("client", "network"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("", ""),
    ],
)
def test_a_client_is_an_address_or_an_ipv6_network(client, network):
    assert access_module.network_of(client) == network


@pytest.mark.parametrize(
    ("client", "name", "found"),
    [
        ("10.0.0.5", "ann", ("operator", "ann")),
        ("10.0.0.5", "bob", ("viewer", "bob")),
        ("10.0.0.6", "ann", ("no_token", "")),
        ("10.0.0.5", "", ("no_token", "")),
    ],
)
def test_a_proxy_is_believed_who_somebody_is_and_nobody_else(client, name, found):
    proxies, operators = frozenset({"10.0.0.5"}), frozenset({"ann"})
    access = Access(TOKEN, user_header="X-User", proxies=proxies, operators=operators)
    assert seen(access, Incoming("10.0.0.7", client, "/", {"X-User": name}, {})) == found


async def test_viewers_see_nothing_personal(worker, near, letter, monkeypatch):
    """In rows, dead letters and messages, on pages and as JSON."""
    monkeypatch.setattr(writing_module, "personal_fields", lambda _: frozenset({"note", "id"}))
    worker.records += [version(worker.application, note, at=n) for n, note in enumerate(("a", "for Ada"), 1)]
    rows = "/tables/parcels/rows?key=k1"
    paths = ("/tables/parcels", rows, f"/dead-letters/{letter}", rows.replace("rows", "history"))
    for path, api in product(paths, ("", "/api")):
        for token, hidden in ((TOKEN, False), (VIEWER, True)):
            async with near.get(api + path, headers=bearer(token)) as response:
                text = await response.text()
            assert ("(masked)" in text) is hidden, path
            assert "Ada" not in text if hidden else "Ada" in text or letter in text
    async with near.get(f"/dead-letters/{letter}/edit", headers=bearer(VIEWER)) as response:
        assert response.status == 403


def test_raw_bytes_are_left_out_with_what_is_personal():
    shown = {"hex": "41", "lines": [{"name": "Ada", "units": 1, "none": None}], "name": {"name": ""}}
    assert masked(shown, frozenset({"name", "none"})) == {
        "hex": "",
        "lines": [{"name": "(masked)", "units": 1, "none": None}],
        "name": {"name": ""},
    }


def test_what_is_personal_is_hidden_within_lists_and_bytes():
    names = frozenset({"name", "phones", "address"})
    said = b'{"name":"Ada","units":1}'
    shown = {
        "phones": ["1815", ""], "address": {"street": "St James", "[0]": None}, "start": said.decode(),
        "data": b64encode(said).decode(), "many": f"[{said.decode()}]", "other": '{"units":1}',
        "word": "everybody",
    }  # fmt: skip
    assert masked(shown, names) == {
        **shown,
        "phones": ["(masked)", ""],
        "address": {"street": "(masked)", "[0]": None},
        "start": "(masked)",
        "data": "(masked)",
        "many": "(masked)",
    }


def test_an_applications_personal_fields_are_those_that_are_marked():
    wiring = next(iter(CHOREOGRAPHIES.values()))
    resources = {"gateway": object(), "clock": object()}
    orders = Application(Layout("orders", 4, 2), wiring, json_without_schema, resources=resources)
    assert personal_fields(orders) == {"customer", "card"}


async def test_a_viewer_is_told_nothing_false_of_hidden_bytes(near, worker, monkeypatch):
    monkeypatch.setattr("streams.control.api.writing.personal_fields", lambda _: {"id"})
    ident = worker.put_letter(
        "a",
        error_type="Undecodable",
        error_message="Parcel: it is of no kind that is known here; it cannot be read (EOFError: )",
        value=b"\xff\x00\x01",
    )
    await near.send("/login", token=VIEWER)
    page = (await near.page(f"/dead-letters/{ident}"))[1]
    assert "hidden from viewers" in page
    assert "An operator has to decide" in page
    for false in ("0 bytes", "cut short", "type it in"):
        assert false not in page
