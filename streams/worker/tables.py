"""Rows of lanes, read from any process with the application's settings: from the worker that owns the key.

    points = await app.table(POINTS).get("ada")

Kafka says which worker owns which lane: each member of the group has the map. While lanes move, the question
is repeated until the new owner answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

from streams.control.base.answers import BrowseAnswer, FoundAnswer, RowAnswer
from streams.control.base.asking import PASSING, PATIENCE
from streams.control.base.view import ErrorAnswer
from streams.errors import ClusterUnavailable, RowsUnavailable, Undecodable
from streams.host.client import Place
from streams.kafka.clients import KafkaOptions, ask, close_within
from streams.model.layout import Layout
from streams.model.message import Row
from streams.model.policy.assignment import Assignment
from streams.model.table import Table
from streams.settings import Settings
from streams.system.loopback import loopback_origin

R = TypeVar("R", bound=Row)
A = TypeVar("A", FoundAnswer, BrowseAnswer)
T = TypeVar("T")

#: Between two tries, in seconds.
PAUSE = 0.25
#: Seconds for one worker's answer.
ANSWER = 5.0
#: Rows that one request asks for.
PAGE = "500"


class Aged(NamedTuple, Generic[R]):
    """A row, and how many seconds it may be behind its owner's; 0: it is the owner's, None: not known."""

    row: R | None
    age: float | None


class NotNow(Exception):
    """Why a question has no answer now, where that passes."""


class TableReader(Generic[R]):
    """Reads the rows of one table, made by `Worker.table`. Use it `async with` for many reads: it keeps its
    connections then, and the map of owners.

    Arguments:
        timeout: seconds until a question is given up; a worker that was killed owns its lanes until its
            session has ended.

    Each method raises RowsUnavailable when no worker has answered for `timeout` seconds, or one refuses, and
    Undecodable for a row that cannot be read. A worker that has lost its lane and does not know it yet can
    answer with rows from before; `after` excludes that.
    """

    def __init__(self, table: Table[R], settings: Settings, *, timeout: float = 60.0) -> None:
        self._table = table
        self._owners = Owners(settings)
        self._token = settings.peers().token
        self._timeout = timeout
        self._session: ClientSession | None = None
        self._kept = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._session = await self._kept.enter_async_context(ClientSession())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        await self._kept.aclose()

    async def get(self, key: str, subkey: str = "", *, after: Place | None = None) -> R | None:
        """The row of a key, from its owner; None: there is none.

        With `after`, the place of a message with this key, the answer has what its handlers have changed. A
        message that waits for a retry, or is a dead letter, has changed nothing yet.
        """
        query = {"key": key, "subkey": subkey, "exact": "1"}
        if after is not None:
            query["after"] = ":".join(map(str, after))
        found = await self._patiently(lambda: self._of_owner(key, query))
        return self._only(found)

    async def get_stale(self, key: str, subkey: str = "") -> Aged[R]:
        """The row of a key, from its owner, or from a standby where the owner does not answer."""
        query = {"key": key, "subkey": subkey, "exact": "1"}

        async def find() -> FoundAnswer | None:
            try:
                return await self._of_owner(key, query)
            except NotNow:
                return await self._of_standby(key, query)

        found = await self._patiently(find)
        age = found.stale.seconds if found is not None and found.stale is not None else 0.0
        return Aged(self._only(found), age)

    async def range(self, prefix: str = "", *, key: str = "") -> AsyncIterator[tuple[str, str, R]]:
        """(key, subkey, row) of all keys that begin with `prefix`, or of one `key`; in no order over keys.

        It is no snapshot: a row that changes meanwhile is as it was, or as it is.
        """
        cursor = ""
        while True:
            query = {"limit": PAGE, "exact": "1", "cursor": cursor}
            page = await self._patiently(partial(self._page, prefix, key, query))
            if page is None:
                return
            for each in page.rows:
                yield each.key, each.subkey, self._row(each)
            cursor = page.next
            if not cursor:
                return

    # -- questions ------------------------------------------------------------------------------------

    async def _page(
        self, prefix: str, key: str, query: Mapping[str, str]
    ) -> FoundAnswer | BrowseAnswer | None:
        if key:
            return await self._of_owner(key, {**query, "key": key})
        assignment = await self._owners.get()
        for url in assignment.members:
            try:
                page = await self._ask(url, "", {**query, "prefix": prefix}, BrowseAnswer)
            except NotNow:
                continue
            if page is not None and page.left_out:
                raise NotNow("; ".join(f"lane {lane}: {why}" for lane, why in page.left_out.items()))
            return page
        raise NotNow(f"none of the workers {', '.join(assignment.members)} answers")

    async def _of_owner(self, key: str, query: Mapping[str, str]) -> FoundAnswer | None:
        lane = self._owners.layout.lane_of_key(key)
        owner = (await self._owners.get()).owners.get(lane)
        if owner is None:
            raise NotNow(f"lane {lane} has no owner yet")
        return await self._ask(owner, "/rows", query, FoundAnswer)

    async def _of_standby(self, key: str, query: Mapping[str, str]) -> FoundAnswer | None:
        lane = self._owners.layout.lane_of_key(key)
        why = f"lane {lane} has no standby that answers"
        for url in (await self._owners.get()).followers.get(lane, ()):
            try:
                return await self._ask(url, "/rows", {**query, "stale": "1"}, FoundAnswer)
            except NotNow as problem:
                why = str(problem)
        raise NotNow(why)

    async def _patiently(self, question: Callable[[], Awaitable[T]]) -> T:
        """Repeat a question, with a new map of owners each time, until there is an answer."""
        why = ""
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    try:
                        return await question()
                    except (NotNow, ClusterUnavailable) as problem:
                        why = str(problem)
                        self._owners.forget()
                    await asyncio.sleep(PAUSE)
        except TimeoutError:
            raise RowsUnavailable(
                f"{self._table.name} was not read within {self._timeout:g} s: {why or 'no worker answers'}"
            ) from None

    async def _ask(self, url: str, path: str, query: Mapping[str, str], kind: type[A]) -> A | None:
        """A worker's answer; None: no row. Raises NotNow, RowsUnavailable."""
        headers = {PATIENCE: "0"}
        if self._token and loopback_origin(url) is None:
            headers["Authorization"] = f"Bearer {self._token}"
        address = f"{url.rstrip('/')}/api/tables/{quote(self._table.name, safe='')}{path}"
        session = self._session or ClientSession()
        try:
            async with session.get(
                address,
                params=query,
                headers=headers,
                timeout=ClientTimeout(total=ANSWER),
                allow_redirects=False,
            ) as response:
                return _read(response.status, await response.read(), url, kind)
        except (TimeoutError, ClientError, OSError) as error:
            raise NotNow(f"{url} does not answer: {error or type(error).__name__}") from error
        finally:
            if session is not self._session:
                await session.close()

    def _only(self, found: FoundAnswer | BrowseAnswer | None) -> R | None:
        return self._row(found.rows[0]) if found is not None and found.rows else None

    def _row(self, answer: RowAnswer) -> R:
        where = f"{self._table.name}, key {answer.key!r}"
        if answer.error:
            raise Undecodable(f"{where}: {answer.error}")
        try:
            return msgspec.convert(answer.value, self._table.row)
        except msgspec.ValidationError as error:
            raise Undecodable(f"{where} is not a {self._table.row.__name__}: {error}") from error


def _read(status: int, body: bytes, url: str, kind: type[A]) -> A | None:
    try:
        if status == 200:
            return msgspec.json.decode(body, type=kind)
        refusal = msgspec.json.decode(body, type=ErrorAnswer)
    except msgspec.DecodeError as error:
        raise RowsUnavailable(f"{url} gave an unreadable answer ({status})") from error
    if refusal.error == "no_row":
        return None
    if refusal.error in PASSING:
        raise NotNow(refusal.detail)
    raise RowsUnavailable(f"{url} refuses: {refusal.detail}")


class Owners:
    """The map of owners, as Kafka has it with the members of the lanes' group."""

    def __init__(self, settings: Settings) -> None:
        settings.layout()  # raises SettingsError at once
        self._settings = settings
        self._known: Assignment | None = None

    @property
    def layout(self) -> Layout:
        """The cut; that of settings in a worker may be another one once it has started."""
        return self._settings.layout()

    def forget(self) -> None:
        """Ask Kafka again next time."""
        self._known = None

    async def get(self) -> Assignment:
        """The newest map. Raises NotNow while the group has none, RowsUnavailable where its lanes are cut
        otherwise, and ClusterUnavailable.
        """
        if self._known is None:
            self._known = await self._ask()
        return self._known

    async def _ask(self) -> Assignment:
        layout, options = self.layout, KafkaOptions()
        group = layout.app_id
        admin = AIOKafkaAdminClient(**options.connection(self._settings.brokers()))

        async def look() -> list[bytes]:
            (answer,) = await admin.describe_consumer_groups([group])
            (described,) = answer.to_object()["groups"]
            return [each["member_assignment"] for each in described["members"]]

        try:
            await ask("who its brokers are", admin.start, options.metadata_timeout)
            given = await ask(f"who is in the group {group}", look, options.metadata_timeout)
        finally:
            await close_within("the client that looks for owners", admin.close)
        for data in given:
            if data and (found := _decode(data)).owners:
                if (found.partitions, found.lanes) != (layout.partitions, layout.lanes):
                    raise RowsUnavailable(
                        f"the workers of {group} have {found.partitions} partitions in {found.lanes} lanes,"
                        f" these settings {layout.partitions} in {layout.lanes}: use the same"
                    )
                return found
        raise NotNow(f"no worker of {group} has lanes: start one")


def _decode(data: bytes) -> Assignment:
    return msgspec.json.decode(ConsumerProtocolMemberAssignment.decode(data).user_data, type=Assignment)
