"""A client of the orders API that a worker serves, and the relay between its outbox and Kafka."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec

from streams.postgres import MigrationSet
from tests.postgres import connected, in_a_loop
from tests.scenarios.world import APP, LANES, PARTITIONS, World, order
from tests.waiting import BOUND, eventually

MIGRATIONS = MigrationSet("orders", Path("agents/api/migrations").resolve())
_ENDS_WITHIN = 60.0


class Shop:
    def __init__(self, world: World, postgres: str) -> None:
        self._postgres = postgres
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.settings = {
            "STEADFAUST_POSTGRES_URL": postgres,
            "STEADFAUST_API_PORT": str(port),
            "STEADFAUST_ORDERS_WAY": "both",
        }
        self._world = world

    def ask(
        self, method: str, path: str, body: Any = None, key: str = "", traceparent: str = ""
    ) -> tuple[int, Any]:
        """Status 0: nobody answers."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key} if key else {}
        if traceparent:
            headers["traceparent"] = traceparent
        data = msgspec.json.encode(body) if body is not None else None
        try:
            with urlopen(Request(f"{self.url}{path}", data, headers, method=method), timeout=BOUND) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.status or 0, json.load(error)
        except OSError:  # refused, reset, or no answer in time
            return 0, None

    def place(self, run: str, numbers: range, traceparent: str = "") -> list[str]:
        """Place each order until it is answered 202, and once more."""
        for number in numbers:
            placed, outcome = order(number, run)
            key = f"key-{placed.order_id}"

            def taken(body: Any = placed, key: str = key) -> bool:
                return self.ask("POST", "/orders", body, key, traceparent)[0] == 202

            eventually(taken, f"{key} is taken")
            eventually(taken, f"{key} is answered again")
            self._world.expected[placed.order_id] = (outcome, placed.total_cents)
        return [f"{run}-{number}" for number in numbers]

    def statuses(self) -> dict[str, tuple[str, str]]:
        """Status and reason of every order, as PostgreSQL has them."""

        async def fetch() -> dict[str, tuple[str, str]]:
            async with connected(self._postgres) as connection:
                rows = await connection.fetch("SELECT id, status, reason FROM orders")
            return {row["id"]: (row["status"], row["reason"]) for row in rows}

        return in_a_loop(fetch())

    def until_told(self, ids: list[str]) -> None:
        """Wait until PostgreSQL says of each order what Kafka says."""

        def told() -> bool:
            found = self.statuses()
            return all(found[name][0] != "pending" for name in ids)

        eventually(told, "every order has its status in PostgreSQL")
        found, outcomes = self.statuses(), self._world.outcomes()
        for name in ids:
            (outcome,) = outcomes[name]
            expected = ("confirmed", "") if outcome == "confirmed" else ("cancelled", outcome)
            assert found[name] == expected


@contextmanager
def relaying(world: World, postgres: str) -> Iterator[None]:
    environment = {
        **os.environ,
        "STEADFAUST_APP_ID": APP,
        "STEADFAUST_PARTITIONS": str(PARTITIONS),
        "STEADFAUST_LANES": str(LANES),
        "STEADFAUST_BOOTSTRAP": world.bootstrap,
        "STEADFAUST_POSTGRES_URL": postgres,
    }
    command = [str(Path(sys.executable).with_name("steadfaust")), "outbox", "relay", "--port", "0"]
    with (world.var / "relay.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(_ENDS_WITHIN) == 0
