"""Other machines are answered by the token of the application alone; this one as ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from web_workers import Browser, FakeWorker

from streams.web import access as access_module
from streams.web.access import Access
from streams.web.loopback import peer_origin
from streams.web.view import Problem

TOKEN = "a-token-of-this-application"


@dataclass
class Asked:
    """A request as it comes to a socket."""

    address: str
    path: str = "/api/worker"
    host: str = "10.0.0.7:6066"
    shown: str = ""

    @property
    def transport(self) -> Any:
        return self

    def get_extra_info(self, name: str) -> tuple[str, int]:
        assert name == "sockname"
        return self.address, 6066

    @property
    def headers(self) -> dict[str, str]:
        return {"Host": self.host, **({"Authorization": self.shown} if self.shown else {})}


def refused(token: str = TOKEN, **asked: str) -> str:
    try:
        Access(token).check(Asked(**asked))  # type: ignore[arg-type]  # all that is looked at
    except Problem as problem:
        return problem.error
    return ""


def test_another_machine_shows_the_token() -> None:
    assert refused(address="10.0.0.7", shown=f"Bearer {TOKEN}") == ""


@pytest.mark.parametrize(
    "shown",
    [f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", TOKEN, "Bearer", "Basic eA==", "Bearer ä", "Bearer \udce4"],
)
def test_another_machine_is_refused_with_another_token(shown: str) -> None:
    assert refused(address="10.0.0.7", shown=shown) == "wrong_token"


@pytest.mark.parametrize("path", ["/", "/api/worker", "/metrics", "/tables", "/health/live/../../api/worker"])
def test_another_machine_is_refused_without_a_token(path: str) -> None:
    assert refused(address="10.0.0.7", path=path) == "no_token"
    assert refused(address="::ffff:10.0.0.7", path=path) == "no_token"
    assert refused(address="10.0.0.7", path=path, host="localhost") == "no_token"


@pytest.mark.parametrize("shown", ["", "Bearer ", "Bearer x"])
def test_no_token_is_right_where_the_application_has_none(shown: str) -> None:
    assert refused("", address="10.0.0.7", shown=shown) != ""


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_supervisors_need_no_token(path: str) -> None:
    assert refused(address="10.0.0.7", path=path) == ""


def test_this_machine_needs_no_token_and_calls_itself_by_its_own_names() -> None:
    assert refused(address="127.0.0.1", host="127.0.0.1:6066") == ""
    assert refused(address="127.0.0.1", host="web.example:6066") == "foreign_host"


def test_no_text_has_the_token() -> None:
    assert TOKEN not in repr(Access(TOKEN))


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(access_module, "compare_digest", lambda *both: compared.append(both))
    assert refused(address="10.0.0.7", shown="Bearer x") == "wrong_token"
    assert compared == [(b"Bearer x", f"Bearer {TOKEN}".encode())]


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
def test_workers_are_asked_where_they_can_be_reached_from_here(
    url: str, own: str, origin: str | None
) -> None:
    assert peer_origin(url, own) == origin


@pytest.fixture
async def browser(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browser]:
    """Of a worker to which every address is another machine's."""
    monkeypatch.setattr(access_module, "is_loopback", lambda host: False)
    async with Browser.of(FakeWorker.with_lanes(0), Access(TOKEN)) as browser:
        yield browser


async def test_a_refusal_is_401_in_json_and_as_a_page_and_says_what_to_send(browser: Browser) -> None:
    async with browser.get("/api/worker") as response:
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "STEADFAUST_WEB_TOKEN" in (await response.json())["detail"]
        assert TOKEN not in await response.text()
    async with browser.get("/tables") as response:
        assert response.status == 401
        assert "STEADFAUST_WEB_TOKEN" in await response.text()


async def test_with_the_token_every_page_is_answered(browser: Browser) -> None:
    status, _ = await browser.json("/api/worker", headers=Access(TOKEN).headers)
    assert status == 200
