"""Sends requests to a worker over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from streams.cli.options import say
from streams.control.base.access import Access
from streams.control.base.asking import PASSING
from streams.control.base.asking import PATIENCE as ASK_AGAIN
from streams.errors import SteadfaustError
from streams.host.slots import addresses
from streams.settings import Settings
from streams.system.loopback import loopback_origin

#: Seconds to wait for an answer. The worker may have to ask another worker first.
TIMEOUT = 30.0
#: Seconds to wait for a lane's owner. A dead worker is listed until its session times out.
PATIENCE = 60.0
#: Seconds to wait for lanes without which an answer would be incomplete.
FOR_ALL_LANES = 20.0
#: Seconds between two attempts.
PAUSE = 0.5


class NoAnswer(SteadfaustError):
    """No worker answered, or it refused the request; the text has the reason."""


class _NotYet(NoAnswer):
    """No owner of a lane answers at the moment; a later attempt may succeed."""


class WorkerAddress:
    """A worker. Any worker of an application can be asked; it asks the owner of a lane."""

    def __init__(self, url: str, token: str = "") -> None:
        """`token` is sent only to workers on other machines."""
        self.url = url.rstrip("/")
        self._headers = {} if loopback_origin(url) else Access(token).headers
        self._open = build_opener(ProxyHandler({})).open

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The worker's answer. Raises NoAnswer."""
        return self._ask(Request(f"{self.url}{path}{'?' + urlencode(query) if query else ''}"))

    def post(self, path: str, body: object) -> Any:
        """Send an operation, and return the worker's answer. Raises NoAnswer."""
        headers = {"Content-Type": "application/json"}
        return self._ask(Request(f"{self.url}{path}", data=msgspec.json.encode(body), headers=headers))

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        """Iterate over all pages of an answer. Raises NoAnswer."""
        cursor = ""
        while True:
            page = self.whole(path, {**query, "cursor": cursor} if cursor else query)
            yield page
            cursor = page["next"]
            if not cursor:
                return

    def whole(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The worker's answer, after waiting some seconds for lanes that do not answer. Those that are still
        missing are in the answer's `left_out`. Raises NoAnswer.
        """
        waiting = _WaitNotice(FOR_ALL_LANES)
        while True:
            answer = self.get(path, query)
            reasons = {f"lane {lane}: {why}" for lane, why in sorted(answer.get("left_out", {}).items())}
            if not reasons or not waiting.goes_on("; ".join(sorted(reasons))):
                return answer

    def _ask(self, request: Request) -> Any:
        request.add_header(ASK_AGAIN, "0")  # we retry ourselves, and print that we wait
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)
        waiting = _WaitNotice(PATIENCE)
        while True:
            try:
                return self._ask_once(request)
            except _NotYet as problem:
                if not waiting.goes_on(str(problem)):
                    raise NoAnswer(f"{problem} (waited for {PATIENCE:g} s)") from problem

    def _ask_once(self, request: Request) -> Any:
        try:
            with self._open(request, timeout=TIMEOUT) as response:
                return msgspec.json.decode(response.read())
        except HTTPError as error:
            with error:
                raise _refusal(error) from error
        except (URLError, OSError, msgspec.DecodeError) as error:
            raise NoAnswer(f"{self.url} does not answer: {error}") from error


class _WaitNotice:
    """Waits between attempts, up to a limit, and prints what it waits for each time that changes."""

    def __init__(self, within: float) -> None:
        self._until = time.monotonic() + within
        self._said = ""

    def goes_on(self, reason: str) -> bool:
        """Wait a little. Returns False once the time is up."""
        if time.monotonic() >= self._until:
            return False
        if reason != self._said:
            self._said = reason
            say(f"waiting: {reason}", err=True)
        time.sleep(PAUSE)
        return True


def _refusal(error: HTTPError) -> NoAnswer:
    try:
        answer = msgspec.json.decode(error.read())
        kind = _NotYet if answer["error"] in PASSING else NoAnswer
        return kind(str(answer["detail"]))
    except (msgspec.DecodeError, KeyError, TypeError):
        return NoAnswer(f"{error.url} answers {error.code}")


def find_worker(url: str = "") -> WorkerAddress:
    """The worker at a URL, or the first one on this machine. Raises NoAnswer if there is none."""
    settings = Settings.read()
    if url:
        return WorkerAddress(url, settings.peers().token)
    found = addresses(settings.var / "workers" / settings.app_id)
    if not found:
        raise NoAnswer(
            f"no worker of {settings.app_id} runs on this machine under {settings.var}: start one, set"
            " STEADFAUST_APP_ID and STEADFAUST_VAR to its values, or name one with --worker URL"
        )
    return WorkerAddress(found[0])
