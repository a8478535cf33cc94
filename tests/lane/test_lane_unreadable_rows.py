"""A row that cannot be read stops its key, not the lane."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from lane_checker import counts, latest
from lane_commands import Pages, command_line
from lane_desk import letters, operations_log
from lane_scenes import counter
from lane_workloads import Workload, avro_codecs, counting
from lane_worlds import FakeWorld, Post, Running, World
from structlog.testing import capture_logs

from streams.cli.workers import NoAnswer
from streams.control.overview.overview import warnings
from streams.model.codecs import AvroCodec, Schemas, decode_row
from streams.model.envelope import new_headers
from streams.model.operations import ROW_OPERATION, RowCommand, RowOperation, encode_operation
from streams.model.policy.assignment import Assignment
from streams.model.row_keys import row_key

pytestmark = pytest.mark.promise("unreadable-rows")

#: Values of a row that nobody can read, with what is said of them.
SPOILT = {
    "null in place of a number": (b"\0" * 8 + b'{"n":null}', "Expected `int`, got `null`"),
    "another kind": (b"\0" * 8 + b"\x1f\x8b\x08", r"starts with b'\x1f\x8b\x08'"),
    "nothing": (b"", "has no bytes"),
    "half a fingerprint": (b"\0\0\0", "has no bytes"),
}


def row_at(world: World, table: str, key: str, value: bytes) -> Post:
    partition = world.app.layout.partition_of(key.encode())
    return Post(world.app.layout.changelog(table), partition, row_key(key.encode()), value, [])


async def opened(world: World, value: bytes, key: str = "a", **options: Any) -> tuple[Workload, Running]:
    """A lane that counts events, with a row of a key that it cannot read."""
    work = await counter(world, **options)
    await world.post(row_at(world, "counts", key, value))
    return work, await world.open()


@pytest.mark.parametrize(("value", "words"), SPOILT.values(), ids=SPOILT)
async def test_a_row_that_cannot_be_read_stops_its_key_alone(world: World, value: bytes, words: str) -> None:
    work, running = await opened(world, value, tallied=True)
    with capture_logs() as logs:
        await world.post(*(world.event(work, key, i) for i in range(2) for key in ("a", "b")))
        await world.settled(work.source)
    assert running.lane.state == "open"
    dead = await letters(world)
    found = [(each.key, each.handler, each.error_type) for each in dead]
    assert found == [(b"a", "bench.count", "RowUnreadable"), (b"a", "bench.count", "RowUnreadable")]
    assert dead[0].error_message.startswith("the row of table counts with key 'a' cannot be read: ")
    assert "steadfaust rows show counts a" in dead[0].error_message
    assert words in dead[0].error_message
    codec = world.app.tables["counts"].codec
    rows = await latest(world, "counts")
    at_b = (world.app.layout.partition_of(b"b"), row_key(b"b"))
    assert decode_row(codec, rows[at_b]).n == 2
    (said,) = [each for each in logs if each["event"] == "row_unreadable"]  # once, not for each message
    assert (said["table"], said["row_key"]) == ("counts", "a")
    (text,) = running.lane.unreadable.texts()
    assert "counts" in text


async def test_a_row_of_an_unknown_schema_lets_its_messages_wait(fake: FakeWorld) -> None:
    schemas = Schemas()
    work = counting(fake.name)
    await fake.start(work, codecs=avro_codecs(schemas))
    ours = fake.app.tables["counts"].codec
    record = json.loads(ours.schema)
    record["fields"].append({"name": "colour", "type": "string", "default": "red"})
    newer = json.dumps(record)
    written = AvroCodec(dict, newer, Schemas())  # type: ignore[type-var] # plain fields
    value = bytes.fromhex(written.fingerprint.decode()) + written.encode(
        {"n": 4, "text": "", "colour": "blue"}  # type: ignore[arg-type]
    )
    await fake.post(row_at(fake, "counts", "a", value))
    running = await fake.open()
    await fake.post(*(fake.event(work, key, 0) for key in "ab"))
    await fake.settled(work.source)
    assert [r.key for r in await fake.records(work.output)] == [b"b"]
    assert not await letters(fake)
    schemas.add(newer)
    await fake.until(lambda: not running.lane.unreadable.texts())
    await fake.until(lambda: running.lane.backlog == 0)
    rows = await latest(fake, "counts")
    assert decode_row(ours, rows[fake.app.layout.partition_of(b"a"), row_key(b"a")]).n == 5


async def test_a_row_whose_schema_nobody_announces_is_given_up(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await fake.start(work, codecs=avro_codecs(Schemas()), schema_patience=100.0)
    await fake.post(row_at(fake, "counts", "a", b"\xab" * 8 + b"\x02"))
    running = await fake.open()
    await fake.post(fake.event(work, "a", 0))
    await fake.until(lambda: running.lane.counters.dead_letters == 1)
    (letter,) = await letters(fake)
    assert (letter.error_type, running.lane.state) == ("RowUnreadable", "open")
    assert "abababababababab" in letter.error_message


async def test_a_looped_message_meets_an_unreadable_row_as_others_do(fake: FakeWorld) -> None:
    work = counting(fake.name, settled=True)
    await fake.start(work)
    await fake.post(row_at(fake, "settled", "a", b""))
    running = await fake.open()
    await fake.post(*(fake.event(work, key, 0) for key in "ab"))
    await fake.settled(work.source, work.output)
    (letter,) = await letters(fake)
    assert (letter.topic, letter.error_type) == (work.output, "RowUnreadable")
    assert running.lane.state == "open"


# -- what an operator does about it -----------------------------------------------------------------------


@asynccontextmanager
async def an_operator(fake: FakeWorld) -> AsyncIterator[tuple[Any, Workload, Running]]:
    """With a row of key a that cannot be read, and a dead letter of it."""
    work, running = await opened(fake, SPOILT["null in place of a number"][0])
    await fake.post(*(fake.event(work, key, 0) for key in "ab"))
    await fake.settled(work.source)
    pages = Pages(fake, running.lane)
    pages.assignment = Assignment(owners={0: "here"}, topics=tuple(fake.app.sources))
    async with command_line(fake, pages) as operator:
        assert len(warnings(pages)) == 1  # type: ignore[arg-type]
        yield operator.run, work, running
        assert not warnings(pages)  # type: ignore[arg-type]


async def test_an_operator_sees_and_replaces_an_unreadable_row(fake: FakeWorld, tmp_path: Path) -> None:
    async with an_operator(fake) as (run, _, running):
        shown = await run("rows", "show", "counts", "a")
        assert "unreadable: Count: Expected `int`, got `null`" in shown.stdout
        assert b'{"n":null}'.hex() in shown.stdout
        row = tmp_path / "row.json"
        row.write_text('{"n": "seven"}')
        wrong = await run("rows", "replace", "counts", "a", "--row", str(row), "--why", "it was null")
        assert (wrong.exit_code, type(wrong.exception)) == (1, NoAnswer)
        row.write_text('{"n": 7}')
        done = await run("rows", "replace", "counts", "a", "--row", str(row), "--why", "it was null")
        assert done.exit_code == 0, done.output
        assert 'replaced: {"n":7,"text":""}' in done.stdout
        again = await run("rows", "replace", "counts", "a", "--row", str(row), "--why", "once more")
        found = (again.exit_code, again.stderr)
        assert found == (1, "refused: the row can be read, so only handlers may change it\n")
        replayed = await run("dlq", "replay", "--where", "key=a", "--why", "the row is right", "--yes")
        assert replayed.exit_code == 0, replayed.output
        await fake.until(lambda: running.lane.counters.replayed == 1)
        assert await counts(fake) == {"a": 8, "b": 1}
        logged = (await operations_log(fake))[0]
        told = {name: logged[name] for name in ("operation", "table", "key", "why", "partition")}
        home = fake.app.layout.partition_of(b"a")
        assert told == {
            "operation": "replace", "table": "counts", "key": "a", "why": "it was null", "partition": home,
        }  # fmt: skip
        assert logged["result"].startswith("replaced: it had 18 bytes, which began with 0000000000000000")


async def test_an_operator_deletes_an_unreadable_row(fake: FakeWorld) -> None:
    async with an_operator(fake) as (run, _, _):
        done = await run("rows", "delete", "counts", "a", "--why", "it is counted anew")
        assert done.exit_code == 0, done.output
        gone = await run("rows", "show", "counts", "a")
        assert gone.exit_code == 3
        assert await counts(fake) == {"b": 1}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"key": b"b"}, "the row can be read"),
        ({"key": b"c"}, "there is no such row"),
        ({"table": "gone"}, "there is no table gone"),
        ({"kind": RowCommand.REPLACE, "value": b"\0" * 8 + b"{}"}, "cannot be read either"),
        (
            {"kind": RowCommand.REPLACE, "value": b"\0" * 8 + b'{"n":1,"text":"%b"}' % (b"x" * 19_990)},
            "the limit is",
        ),
    ],
)
async def test_an_operation_that_does_not_fit_changes_no_row(
    fake: FakeWorld, change: dict[str, Any], refused: str
) -> None:
    work, running = await opened(fake, b"")
    await fake.post(fake.event(work, "b", 0))
    await fake.settled(work.source)
    before = await latest(fake, "counts")
    await fake.post(asked_of_row(fake, **change))
    await fake.until(lambda: running.lane.counters.operations == 1)
    await fake.settled(fake.app.layout.operations)
    (done,) = await operations_log(fake)
    assert done["result"].startswith("refused: ")
    assert refused in done["result"]
    assert await latest(fake, "counts") == before


async def test_an_operation_under_another_key_is_passed_over(fake: FakeWorld) -> None:
    _, running = await opened(fake, b"")
    post = asked_of_row(fake)
    with capture_logs() as logs:
        await fake.post(post._replace(key=b"other"))
        await fake.settled(fake.app.layout.operations)
    assert [each["event"] for each in logs if "operation" in each["event"]] == ["operation_unreadable"]
    assert running.lane.counters.operations == 0


def asked_of_row(world: World, **change: Any) -> Post:
    asked: dict[str, Any] = {"kind": RowCommand.DELETE, "table": "counts", "key": b"a", **change}
    operation = RowOperation(who="ann", why="it is damaged", at_ms=1, **asked)
    headers = new_headers(ROW_OPERATION, "row", source="desk", time=1e9, message_id="op-1")
    home = world.app.layout.partition_of(operation.key)
    return Post(world.app.layout.operations, home, operation.key, encode_operation(operation), headers)
