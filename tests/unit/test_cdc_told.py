"""Change data capture without its machines: what operators are told, and the files for a cluster."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from streams.model import envelope
from streams.postgres.cdc import CdcStatus, Connect, ConnectorStatus, SlotLag, TaskStatus
from streams.postgres.cdc.connector import HEADERS, connector_settings, worker_properties
from streams.postgres.errors import ConnectBusy, ConnectUnavailable
from streams.units import MIB

OPS = Path(__file__).parents[2] / "ops"
WELL = SlotLag(active=True, status="reserved", behind=0, retained=MIB, room=511 * MIB)
RUNNING = ConnectorStatus("RUNNING", (TaskStatus(0, "RUNNING"),))


@pytest.mark.promise("cdc-slot")
@pytest.mark.parametrize(
    ("slot", "told"),
    [
        (WELL, ""),
        (WELL._replace(retained=255 * MIB, room=257 * MIB), ""),
        (WELL._replace(retained=256 * MIB, room=256 * MIB), "keeps 256 of at most 512 MiB of the log"),
        (
            WELL._replace(retained=100 * MIB, room=412 * MIB, warn_at=100 * MIB),
            "keeps 100 of at most 512 MiB",
        ),
        (WELL._replace(retained=99 * MIB, room=413 * MIB, warn_at=100 * MIB), ""),
        (
            WELL._replace(retained=100 * MIB, room=None, warn_at=100 * MIB),
            "keeps 100 MiB of the log, without",
        ),
        (
            WELL._replace(retained=600 * MIB, room=-88 * MIB, status="unreserved"),
            "keeps 600 MiB of the log, over its limit: the server drops it at the next checkpoint",
        ),
        (WELL._replace(retained=511 * MIB, room=None), ""),
        (WELL._replace(retained=512 * MIB, room=None), "keeps 512 MiB of the log, without a limit"),
        (
            WELL._replace(active=False, retained=3 * MIB),
            "nothing reads the replication slot, which keeps 3 MiB",
        ),
        (WELL._replace(active=False, status="lost", retained=0, room=None), "`steadfaust outbox relay`"),
    ],
)
def test_a_slot_warns_before_the_disk_fills(slot: SlotLag, told: str) -> None:
    assert told in slot.warning
    assert bool(told) == bool(slot.warning)


def test_what_runs_is_not_told_to_start() -> None:
    lost = WELL._replace(active=False, status="lost", retained=0, room=None, invalidated="idle_timeout")
    unread = WELL._replace(active=False)
    for slot in (lost, unread):
        assert "steadfaust" not in slot.trouble
        assert "start" not in slot.trouble
        assert CdcStatus(RUNNING, slot).problem == slot.trouble
    assert "idle_replication_slot_timeout" in lost.trouble


@pytest.mark.parametrize(
    ("connector", "told"),
    [
        (RUNNING, ""),
        (None, "no connector for the outbox"),
        (ConnectorStatus("STOPPED", ()), "the connector is STOPPED"),
        (ConnectorStatus("RUNNING", ()), "no task of it runs"),
        (
            ConnectorStatus(
                "RUNNING", (TaskStatus(0, "FAILED", "Retry\n\tat Task.java\nCaused by: no slot"),)
            ),
            "task 0 of the connector has failed: Caused by: no slot",
        ),
        (
            ConnectorStatus("FAILED", (), "Retry\n\tat Connector.java\nCaused by: no broker"),
            "the connector has failed: Caused by: no broker",
        ),
    ],
)
def test_a_connector_is_as_its_task_is(connector: ConnectorStatus | None, told: str) -> None:
    found = CdcStatus(connector, WELL).problem
    assert told in found
    assert bool(told) == bool(found)


def test_a_connector_that_relays_nothing_is_a_standstill() -> None:
    assert "restart Kafka Connect" in CdcStatus(RUNNING, WELL, stalled=True).standstill
    assert CdcStatus(ConnectorStatus("STOPPED", ()), WELL, stalled=True).standstill.endswith(
        "no task of it runs"
    )


def test_a_row_that_is_too_large_is_named() -> None:
    trace = "Retry\nCaused by: org.apache.kafka.common.errors.RecordTooLargeException: too large"
    failed = ConnectorStatus("RUNNING", (TaskStatus(0, "FAILED", trace),))
    found = CdcStatus(failed, WELL, "o-1:2 (topic t, 2000000 bytes, `steadfaust outbox show o-1:2`)").problem
    assert "RecordTooLargeException: too large. The largest row that waits is o-1:2 (topic t" in found


@pytest.mark.parametrize(
    ("connector", "tasks", "restarted"),
    [
        ("RUNNING", ["RUNNING"], False),
        ("RUNNING", ["FAILED"], True),
        ("FAILED", [], True),
        ("FAILED", ["UNASSIGNED"], True),
        ("FAILED", ["RUNNING"], False),
        ("RUNNING", ["UNASSIGNED"], False),
        ("STOPPED", [], False),
    ],
)
async def test_what_does_not_go_on_by_itself_is_restarted(
    connector: str, tasks: list[str], restarted: bool
) -> None:
    found = {
        "connector": {"state": connector, "trace": "no broker"},
        "tasks": [{"id": number, "state": state} for number, state in enumerate(tasks)],
    }

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(found)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, Connect(str(server.make_url("/"))) as connect:
        status = await connect.status()
    assert status is not None
    assert status.needs_restart is restarted
    assert ("no broker" in status.problem) is (connector == "FAILED" and restarted)


async def test_a_connect_that_starts_is_not_one_without_connector() -> None:
    """It answers 404 for what it has not read yet, and 503 for its health."""
    health = [503, 200]

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({}, status=health.pop(0) if request.path == "/health" else 404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, Connect(str(server.make_url("/"))) as connect:
        with pytest.raises(ConnectBusy, match="starts"):
            await connect.status()
        assert await connect.status() is None


def test_files_for_a_cluster_match_the_local_stack() -> None:
    """Written by `steadfaust cdc files worker` and `steadfaust cdc files connector`."""
    assert (OPS / "connect-worker.properties").read_text() == worker_properties()
    assert json.loads((OPS / "outbox-connector.json").read_text()) == connector_settings()


def test_each_header_of_the_envelope_has_a_column() -> None:
    kept = {name for name in vars(envelope) if name.isupper() and isinstance(getattr(envelope, name), str)}
    # What lanes say of their own messages; a trace goes on without what a vendor told beside it.
    without = {"TIMER_AFTER", "TIMER_DUE", "LOOPBACK", "TRACESTATE"}
    assert {getattr(envelope, name) for name in kept - without} <= set(HEADERS.values())


def test_no_secret_is_in_the_connector_s_settings() -> None:
    settings = connector_settings()
    found = {settings[f"database.{name}"] for name in ("hostname", "user", "password")}
    assert found == {"${env:CDC_DATABASE_HOST}", "${env:CDC_DATABASE_USER}", "${env:CDC_DATABASE_PASSWORD}"}


@pytest.mark.parametrize(
    ("status", "told", "is_busy"),
    [
        (409, "Cannot complete request momentarily", True),
        (500, "Request cannot be completed because a rebalance is expected", True),
        (500, "Connector outbox not STOPPED", False),
    ],
)
async def test_a_connect_whose_workers_rebalance_is_busy_and_asked_again(
    status: int, told: str, is_busy: bool
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"error_code": status, "message": told}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, Connect(str(server.make_url("/"))) as connect:
        with pytest.raises(ConnectUnavailable) as raised:
            await connect.resume()
    assert isinstance(raised.value, ConnectBusy) == is_busy
