"""The orders API as a process, and asked whatever its document allows, and what it does not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from agents.api.testing import ApiDidNotStart, ApiProcess
from tests.postgres import connected, in_a_loop
from tests.waiting import BOUND, eventually

pytestmark = pytest.mark.promise("api-any-request", "schemathesis, whatever the document allows and does not")

CUP = b'{"customer":"a","lines":[{"sku":"c","units":1}],"total_cents":1,"card":"c","country":"SE"}'


def ask(request: Request | str) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(request, timeout=BOUND) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.status or 0, json.load(error)


def place(url: str, key: str) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    return ask(Request(f"{url}/orders", CUP, headers))


def health(url: str) -> tuple[int, dict[str, Any]]:
    return ask(f"{url}/health")


def metrics(url: str) -> str:
    with urlopen(f"{url}/metrics", timeout=BOUND) as answer:
        return str(answer.read().decode())


async def age(url: str) -> None:
    async with connected(url) as connection:
        long_ago = "now() - interval '30 days'"
        await connection.execute(f"UPDATE outbox SET published_at = {long_ago}, created_at = {long_ago}")


@pytest.mark.promise("api-atomic")
def test_a_killed_api_has_placed_what_it_answered(orders_url: str, tmp_path: Path) -> None:
    settings = os.environ | {"STEADFAUST_POSTGRES_URL": orders_url, "STEADFAUST_API_PROJECTION": "false"}
    with ApiProcess(tmp_path / "api.log", settings) as first:
        status, order = place(first.url, "k-1")
        assert status == 202
        first.kill()
    in_a_loop(age(orders_url))
    with ApiProcess(tmp_path / "api.log", settings) as second:
        assert place(second.url, "k-1") == (202, order)
        assert health(second.url) == (200, {"status": "OK", "reasons": []})
        eventually(lambda: "\noutbox_unpublished_rows 0.0\n" in metrics(second.url), "the rows are counted")
        log = tmp_path / "api.log"
        eventually(lambda: '"event": "cleaned_up"' in log.read_text(), "a cleanup in the background")
        assert second.end() == 0


def test_an_api_without_postgresql_and_kafka_starts_and_says_so(tmp_path: Path) -> None:
    settings = os.environ | {
        "STEADFAUST_POSTGRES_URL": f"postgresql://nobody@/orders?host={tmp_path}",
        "STEADFAUST_BOOTSTRAP": "127.0.0.1:1",
        "STEADFAUST_APP_ID": "shop",
        "STEADFAUST_API_PATIENCE": "1",
    }
    with ApiProcess(tmp_path / "api.log", settings) as api:
        status, report = health(api.url)
        assert (status, report["status"]) == (503, "DOWN")
        assert [str(why).split(":")[0] for why in report["reasons"]] == ["PostgreSQL", "projection"]
        status, said = place(api.url, "k-1")
        assert (status, said["title"]) == (503, "Service Unavailable")
        assert api.process is not None
        api.process.send_signal(signal.SIGINT)
        assert api.process.wait(BOUND) == 0


def test_an_api_that_cannot_start_says_why_in_a_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "agents.api"], env={"PORT": "80 80"}, capture_output=True, text=True,
        timeout=BOUND, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == (
        "error: the orders API cannot start: PORT is '80 80', expected a number from 0 to 65535"
    )
    with (
        pytest.raises(ApiDidNotStart),
        ApiProcess(tmp_path / "api.log", os.environ | {"STEADFAUST_VAR": str(tmp_path)}),
    ):
        pass
    assert "no local stack" in (tmp_path / "api.log").read_text()


EXAMPLES = 100
#: DELETE asks for a cancellation: the order is there afterwards.
DOES_NOT_HOLD = "use_after_free"


@pytest.mark.verify("test_orders_api_document.py and the tests of bad input cover it")
def test_schemathesis_finds_nothing_wrong_in_the_orders_api(orders_url: str, tmp_path: Path) -> None:
    settings = os.environ | {"STEADFAUST_POSTGRES_URL": orders_url, "STEADFAUST_API_PROJECTION": "false"}
    hooks = {"SCHEMATHESIS_HOOKS": "tests.integration.schemathesis_hooks", "PYTHONPATH": str(Path.cwd())}
    with ApiProcess(tmp_path / "api.log", settings) as api:
        asked = subprocess.run(
            [
                *(Path(sys.executable).with_name("schemathesis"), "run", f"{api.url}/docs/openapi.json"),
                *("--checks", "all", "--exclude-checks", DOES_NOT_HOLD, "--max-examples", str(EXAMPLES)),
                *("--continue-on-failure", "--no-color"),
            ],
            env=os.environ | hooks,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, asked.stdout[-20_000:] + asked.stderr[-2_000:]
        assert "5 selected / 5 total" in asked.stdout, asked.stdout
        assert api.end() == 0
