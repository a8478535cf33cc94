"""Messages that a service publishes with SQL alone: what is filled in and refused, and who handles them."""

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from streams.local import Stack
from streams.model.codecs import JsonCodec
from streams.postgres import Connection, Database
from streams.postgres.relay import Relay
from streams.postgres.relay.outbox_publisher import KafkaPublisher
from tests.integration.worker_process import environment_of, page, until_ready, working
from tests.relays import ANNOUNCEMENTS, QUICK, Stuck, drained, relayed, relaying
from tests.waiting import BOUND, eventually_async

TOPIC = "shop.order.placed.v1"
PUBLISH = "SELECT outbox_publish('order', $1, 'OrderPlaced', $2, $3::jsonb)"


#: The columns that every description of an outbox has, as SQL.
USUAL = {
    "aggregate_type": "'order'",
    "aggregate_id": "'o-1'",
    "event_type": "'OrderPlaced'",
    "topic": f"'{TOPIC}'",
    "payload": "'{}'",
}


def insert(table: str, given: dict[str, str]) -> str:
    columns = USUAL | given
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"


async def row(connection: Connection) -> dict[str, Any]:
    found = await connection.fetchrow("SELECT * FROM outbox ORDER BY position DESC LIMIT 1")
    assert found is not None
    return dict(found)


def is_complete(found: dict[str, Any], database: str) -> None:
    assert found["ce_correlationid"] == found["id"]
    assert found["ce_source"] == database
    assert found["schema_fingerprint"] == JsonCodec.fingerprint.decode()
    assert found["ce_specversion"] == "1.0"
    assert abs((datetime.fromisoformat(found["ce_time"]) - found["created_at"]).total_seconds()) < BOUND
    assert (found["published_at"], found["attempts"]) == (None, 0)


async def test_a_function_publishes_json_and_says_the_id(connection: Connection) -> None:
    payload = {"order_id": "o-1", "note": 'a "quoted" C:\\dir\n\u00e5'}
    made = await connection.fetchval(PUBLISH, "o-1", TOPIC, json.dumps(payload))
    found = await row(connection)
    assert found["id"] == made == str(UUID(made))
    is_complete(found, await connection.fetchval("SELECT current_database()"))
    assert json.loads(found["payload"]) == payload
    assert (found["aggregate_id"], found["event_type"], found["topic"]) == ("o-1", "OrderPlaced", TOPIC)


async def test_the_function_takes_what_a_sender_knows_by_name(connection: Connection) -> None:
    await connection.execute(
        "SELECT outbox_publish(aggregate_type => 'order', aggregate_id => 'o-1', event_type => NULL,"
        " topic => $1, payload => '{}', id => 'e-1', correlation_id => 'o-1', causation_id => 'c-1',"
        " source => 'billing', traceparent => '00-a')",
        TOPIC,
    )
    found = await row(connection)
    names = ("id", "event_type", "ce_correlationid", "ce_causationid", "ce_source", "traceparent")
    assert [found[name] for name in names] == ["e-1", TOPIC, "o-1", "c-1", "billing", "00-a"]


@pytest.mark.parametrize(
    ("table", "given"),
    [
        ("outbox", {"payload": "'{\"n\": 1}'"}),
        ("outbox", {"payload": "convert_to('{\"n\": 1}', 'UTF8')", "id": "gen_random_uuid()"}),
        ("outbox_events", {"payload": "'{\"n\": 1}'::jsonb"}),
        (
            "outbox_events",
            {"payload": "'{\"n\": 1}'::json", "id": "gen_random_uuid()", "created_at": "now()"},
        ),
        ("outbox_events", {"payload": "'{\"n\": 1}'", "aggregate_id": "gen_random_uuid()"}),
    ],
)
async def test_a_plain_insert_of_the_usual_columns_is_a_message(
    connection: Connection, table: str, given: dict[str, str]
) -> None:
    made = await connection.fetchval(f"{insert(table, given)} RETURNING id")
    found = await row(connection)
    assert found["id"] == made
    is_complete(found, await connection.fetchval("SELECT current_database()"))
    assert json.loads(found["payload"]) == {"n": 1}
    event = await connection.fetchrow("SELECT payload, published_at FROM outbox_events WHERE id = $1", made)
    assert event is not None
    assert (json.loads(event["payload"]), event["published_at"]) == ({"n": 1}, None)


@pytest.mark.parametrize("kind", ["uuid", "bigint", "int", "varchar(50)", "char(36)", "text"])
async def test_an_aggregates_id_may_be_a_column_of_any_type(connection: Connection, kind: str) -> None:
    await connection.execute(f"CREATE TABLE orders (id {kind}, note text)")
    key = str(uuid4()) if kind in ("uuid", "char(36)") else "17"
    await connection.execute(f"INSERT INTO orders VALUES ('{key}', 'a')")
    await connection.execute(
        "SELECT outbox_publish('order', o.id, 'OrderPlaced', $1, to_jsonb(o)) FROM orders AS o", TOPIC
    )
    found = await row(connection)
    assert found["aggregate_id"] == key
    assert json.loads(found["payload"])["note"] == "a"


async def test_avro_needs_its_fingerprint_and_nothing_else(connection: Connection) -> None:
    avro = {"payload": "'\\x02ff'::bytea", "schema_fingerprint": "'00112233445566aa'"}
    await connection.execute(insert("outbox", avro))
    found = await row(connection)
    assert (found["payload"], found["schema_fingerprint"]) == (b"\x02\xff", "00112233445566aa")
    assert found["ce_correlationid"] == found["id"]
    assert await connection.fetchval("SELECT payload FROM outbox_events") is None


async def test_a_message_goes_with_the_callers_transaction(connection: Connection) -> None:
    rolled_back = connection.transaction()
    await rolled_back.start()
    await connection.fetchval(PUBLISH, "o-1", TOPIC, "{}")
    await rolled_back.rollback()
    assert await connection.fetchval("SELECT count(*) FROM outbox") == 0


@pytest.mark.promise("outbox-by-sql")
@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("topic", "'no topic'", "outbox_topic_check"),
        ("id", "''", "not to be empty"),
        ("aggregate_id", "''", "not to be empty"),
        ("id", "repeat('x', 1025)", "id has more than 1024 bytes"),
        ("aggregate_id", "repeat('\u00e5', 600)", "aggregate_id has more than 1024 bytes"),
        ("ce_source", "repeat('x', 1025)", "ce_source has more than 1024 bytes"),
        ("ce_correlationid", "repeat('x', 1025)", "ce_correlationid has more than 1024 bytes"),
        ("payload", "NULL", "payload"),
        ("payload", "''", "is no JSON"),
        ("payload", "'{\"a\": nan}'", "is no JSON"),
        ("payload", '\'{"a": "C:\\\\d"}\'', "is no JSON.*"),  # bytes' own backslash: one of two is gone
        ("payload", "'\\xff00'::bytea", "is no JSON"),
        ("payload", "convert_to(to_json(repeat('x', 1000000))::text, 'UTF8')", "1000000 is the most"),
    ],
)
async def test_what_no_reader_would_take_is_refused_by_name(
    connection: Connection, column: str, value: str, says: str
) -> None:
    with pytest.raises(asyncpg.PostgresError, match=says):
        await connection.execute(insert("outbox", {column: value}))


async def test_the_function_refuses_a_payload_no_topic_takes(connection: Connection) -> None:
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="1000000 is the most"):
        await connection.execute(PUBLISH, "o-1", TOPIC, json.dumps("x" * 1_000_000))
    with pytest.raises(asyncpg.NotNullViolationError):
        await connection.execute(PUBLISH, "o-1", TOPIC, None)


async def test_a_role_that_may_only_insert_publishes_from_any_schema(connection: Connection) -> None:
    role = f"writer_{uuid4().hex}"
    await connection.execute(f"CREATE ROLE {role}")
    try:
        await connection.execute(f"GRANT INSERT ON outbox TO {role}")
        await connection.execute(f"SET ROLE {role}; SET search_path = pg_catalog")
        await connection.execute(
            PUBLISH.replace("outbox_publish", "public.outbox_publish"), "o-1", TOPIC, "{}"
        )
        await connection.execute("RESET ROLE; RESET search_path")
        assert (await row(connection))["aggregate_id"] == "o-1"
    finally:
        await connection.execute(f"RESET ROLE; RESET search_path; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.promise("outbox-by-sql")
async def test_rows_by_sql_alone_reach_a_lane_once(
    database: Database, connection: Connection, kafka: Stack, tmp_path: Path
) -> None:
    topic, parcels = "sql.parcel.seen.v1", [f"sql-{uuid4()}" for _ in range(4)]
    environment = environment_of("sql", kafka.bootstrap, tmp_path, PARTITIONS=4, LANES=4)
    environment["POST_TOPIC"] = topic
    with working("tests.integration.post_worker", environment) as log:
        url = await asyncio.to_thread(until_ready, environment, log)
        for parcel in parcels[:2]:
            payload = json.dumps({"parcel": parcel})
            await connection.fetchval(PUBLISH, parcel, topic, payload)
        for parcel, table in zip(parcels[2:], ("outbox", "outbox_events"), strict=True):
            given = {"aggregate_id": parcel, "topic": topic, "payload": json.dumps({"parcel": parcel})}
            await connection.execute(insert(table, {name: f"'{value}'" for name, value in given.items()}))
        stuck = Stuck("published")
        relay = Relay(database.url, KafkaPublisher(kafka.bootstrap, ANNOUNCEMENTS), QUICK, faults=stuck)
        running = asyncio.create_task(relay.run())
        async with asyncio.timeout(BOUND):
            await stuck.is_there.wait()
        running.cancel()  # what Kafka has is not marked: the next relay publishes it again
        await asyncio.wait([running])
        async with relaying(database.url, KafkaPublisher(kafka.bootstrap, ANNOUNCEMENTS)):
            await drained(database)
        keys = {parcel.encode() for parcel in parcels}
        again = sum(each.key in keys for each in await relayed(kafka.bootstrap, topic)) - len(parcels)
        assert again > 0, "nothing came twice"

        def dropped() -> int:
            lanes = json.loads(page(f"{url}/api/worker"))["lanes"]
            return sum(lane["counters"]["duplicates"] for lane in lanes)

        await eventually_async(lambda: dropped() >= again, f"the lanes drop what came twice; see {log}")
        assert [seen(url, parcel) for parcel in parcels] == [1] * len(parcels)


def seen(url: str, parcel: str) -> int:
    (found,) = json.loads(page(f"{url}/api/tables/parcels/rows?key={parcel}"))["rows"]
    return int(found["value"]["seen"])
