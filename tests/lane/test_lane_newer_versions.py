"""A deploy that needed two steps and is done in one: what only newer workers can read waits for them.

Classes are made in functions: their annotations must be real, not text.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Literal

import pytest
from lane_checker import dead_letters, latest
from lane_failing import pass_time
from lane_parcels import BUCKET
from lane_scenes import died_of, opened, post
from lane_worlds import FakeWorld, Post, Running, World
from structlog.testing import capture_logs
from test_lane_upgrading import KEYS, rolled

from streams.control.handlers.awaited_schemas import awaited, warning
from streams.host.announcements import Announcements
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.claim import claim_of, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import MakeCodec, Schemas, avro, decode_row, json_without_schema
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.row_keys import split_row_key
from streams.model.schema_versions import nothing_frozen
from streams.model.table import Table
from streams.testing.blobs import MemoryBlobs

CODECS: dict[str, Callable[[Schemas], MakeCodec]] = {
    "avro": lambda schemas: avro(nothing_frozen, schemas),
    "json": lambda _: json_without_schema,
}
Fields = dict[str, Any]
#: Of each change, the fields of the version before and of the one after, beside the key. The newer version
#: reads what the older one writes; the older one not what the newer one does.
CHANGES: dict[str, tuple[Fields, Fields]] = {
    "a field without default is gone": ({"note": str}, {}),
    "a field has another name": ({"total": int}, {"cents": (int, 0)}),
    "a text may be missing": ({"note": str}, {"note": str | None}),
    "a symbol is new": ({"way": Literal["air"]}, {"way": Literal["air", "sea"]}),
    "a part has lost a field": ({"part": {"a": int, "b": int}}, {"part": {"a": int}}),
}
#: Others, which lose something or nothing.
OTHERS: dict[str, tuple[Fields, Fields]] = {
    "a number is a text": ({"price": int}, {"price": str}),
    "a field with defaults has another name": ({"b": (str, "")}, {"bb": (str, "")}),
    "a field with a default is new": ({}, {"b": (str, "")}),
}
VALUES: Fields = {"price": 1, "note": None, "total": 1, "cents": 1, "way": "sea"}


class Version:
    """A version of a service that counts messages in rows, both with these fields."""

    def __init__(self, world: World, fields: Fields, codecs: str, *, row: bool, message: bool) -> None:
        self.world = world
        self.schemas = Schemas()
        self.codecs = CODECS[codecs](self.schemas)
        made = self.made = self._class(Message, "Counted", fields if message else {})
        counts = self._class(Row, "Counts", fields if row else {})
        given, kept = (self._values(kind) for kind in (made, counts))
        self.given = given

        @Service("counter").handler(counts=Table("counts", counts))
        def tally(event: made, counts: counts | None) -> Outcome:  # type: ignore[valid-type]
            return outcome(counts=table(k=event.k, n=1 + (counts.n if counts else 0), **kept))  # type: ignore[attr-defined]

        table = counts
        self.wiring = choreography(on(made, tally))
        self.resources: dict[str, Any] = {}
        self.source = made.TOPIC

    def _class(self, base: Any, name: str, fields: Fields) -> Any:
        kinds: Fields = {"k": str, "n": int}
        defaults: Fields = {}
        for field, kind in fields.items():
            if isinstance(kind, dict):
                kinds[field] = type(Row)("Part", (Row,), {"__annotations__": kind}, frozen=True)
            elif isinstance(kind, tuple):
                kinds[field], defaults[field] = kind
            else:
                kinds[field] = kind
        head = {"__module__": __name__, "__annotations__": kinds, **defaults}
        if base is Message:
            head |= {"TOPIC": f"{self.world.name}.counted", "key": property(lambda event: event.k)}
        return type(base)(name, (base,), head, frozen=True, kw_only=True)

    def _values(self, kind: Any) -> Fields:
        found: Fields = {}
        for field, of in kind.__annotations__.items():
            if field in ("k", "n"):
                continue
            value = VALUES.get(field)
            if isinstance(of, type) and issubclass(of, Row):
                value = of(**dict.fromkeys(of.__annotations__, 1))
            elif of is str:
                value = "x"
            elif of == Literal["air"]:
                value = "air"
            found[field] = value
        return found

    async def bind(self, first: Application | None, **options: Any) -> Application:
        """The application in this version, announced as a worker does it at its start."""
        world = self.world
        if first is None:
            app = await world.start(self, lanes=2, codecs=self.codecs, **options)
        else:
            app = world.cut_into(self, lanes=2, codecs=self.codecs)
            app.claims = first.claims
        app.follow_versions(self.schemas)
        await self.announce(app)
        return app

    async def announce(self, app: Application) -> None:
        announcements = Announcements(app, self.schemas, cluster=self.world.cluster, bootstrap="")

        async def produce(records: dict[bytes, bytes | None]) -> None:
            topic = app.layout.announcements
            await self.world.post(*(Post(topic, 0, key, value, []) for key, value in records.items()))

        announcements._produce = produce  # type: ignore[method-assign, assignment] # the world's own topic
        await announcements.read()
        await announcements.announce()


async def two_versions(
    world: World, change: str, codecs: str, *, row: bool = False, message: bool = False, **options: Any
) -> tuple[list[Version], list[Application]]:
    """Both versions, and their applications. The first has heard of the second."""
    works = [
        Version(world, fields, codecs, row=row, message=message) for fields in {**CHANGES, **OTHERS}[change]
    ]
    first = await works[0].bind(None, **options)
    second = await works[1].bind(first)
    await works[0].announce(first)
    return works, [first, second]


def sent(work: Version, app: Application, key: str = "a", number: int = 1) -> Post:
    return post(work.world, work.made(k=key, n=1, **work.given), number, app)


async def waits(fake: FakeWorld, lane: Running) -> None:
    """A message waits for a newer worker, and all that came is committed."""
    await fake.until(lambda: awaited(lane.lane.gates.values()) and not lane.lane.backlog)


async def counted(world: World) -> dict[str, int]:
    codec = world.app.tables["counts"].codec
    rows = {key: decode_row(codec, value) for (_, key), value in (await latest(world, "counts")).items()}
    return {split_row_key(key)[0].decode(): row.n for key, row in rows.items()}


def idle(lanes: Sequence[Running]) -> bool:
    return not any(gate.queues for lane in lanes for gate in lane.lane.gates.values())


@pytest.mark.promise("newer-version")
@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", ["message", "row"])
async def test_a_rolling_deploy_leaves_no_dead_letter(
    fake: FakeWorld, change: str, codecs: str, what: str
) -> None:
    works, versions = await two_versions(fake, change, codecs, **{what: True})
    ids = count()

    def posted(app: Application) -> list[Post]:
        work = works[versions.index(app)]
        return [post(fake, work.made(k=key, n=1, **work.given), next(ids), app) for key in KEYS]

    await rolled(fake, versions, posted, works[0].source)
    last = fake.running[-2:]
    await fake.until(lambda: idle(last) and not any(lane.lane.backlog for lane in last))
    assert await dead_letters(fake, works[0].source) == []
    assert await counted(fake) == dict.fromkeys(KEYS, 2 * 2 * 3)


GONE = "a field without default is gone"


@pytest.mark.promise("newer-version")
@pytest.mark.parametrize("codecs", CODECS)
async def test_health_says_that_a_newer_version_is_awaited(fake: FakeWorld, codecs: str) -> None:
    (_, after), versions = await two_versions(fake, GONE, codecs, message=True)
    await fake.post(sent(after, versions[1], "a"), sent(after, versions[1], "b"))
    lanes = [await fake.open(number, app=versions[0]) for number in range(2)]
    gates = [gate for lane in lanes for gate in lane.lane.gates.values()]
    await fake.until(lambda: sum(each.keys for each in awaited(gates)) == 2)
    for each in awaited(gates):
        assert each.newer
        assert "deploy the newer version" in warning(each)


@pytest.mark.promise("newer-version")
@pytest.mark.parametrize("codecs", CODECS)
async def test_a_newer_worker_that_never_comes_makes_a_dead_letter(fake: FakeWorld, codecs: str) -> None:
    (before, after), versions = await two_versions(fake, GONE, codecs, message=True, schema_patience=60.0)
    await fake.post(sent(after, versions[1]), sent(before, versions[0], number=2))
    lane = await fake.open(_home(fake), app=versions[0])
    await waits(fake, lane)
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await fake.until(lambda: idle([lane]))
    (letter,) = await dead_letters(fake, before.source)
    headers = dict(letter.headers)
    assert headers["dlq-error-type"] == b"Undecodable"
    assert b"No worker of that version has taken its lane within 60 s" in headers["dlq-error-message"]
    assert await counted(fake) == {"a": 1}


@pytest.mark.parametrize("codecs", CODECS)
async def test_what_no_version_reads_is_dead_where_the_newest_runs(fake: FakeWorld, codecs: str) -> None:
    (_, after), versions = await two_versions(fake, GONE, codecs, message=True)
    bad = sent(after, versions[1])
    await fake.post(bad._replace(value=b'{"k": 7}' if codecs == "json" else b"\xff"))
    lane = await fake.open(_home(fake), app=versions[1])
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await lane.stop()
    assert await died_of(fake, after) == ["Undecodable"]  # type: ignore[arg-type] # has its topic


@pytest.mark.promise("newer-version")
async def test_bytes_that_no_version_wrote_do_not_wait(fake: FakeWorld) -> None:
    (before, after), versions = await two_versions(fake, GONE, "avro", message=True)
    lane = await opened(
        fake, sent(after, versions[1])._replace(value=b"\xff"), number=_home(fake), app=versions[0]
    )
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await lane.stop()
    assert await died_of(fake, before) == ["Undecodable"]  # type: ignore[arg-type] # has its topic


@pytest.mark.promise("newer-version")
@pytest.mark.parametrize("codecs", CODECS)
async def test_a_payload_by_reference_waits_as_well(fake: FakeWorld, codecs: str) -> None:
    blobs = MemoryBlobs(BUCKET, now=fake.clock.now, sleep=fake.clock.sleep)
    claims = ClaimChecks(blobs, bucket=BUCKET, threshold=0, max_in_flight_bytes=1 << 20, cache_bytes=0)
    (_, after), versions = await two_versions(fake, GONE, codecs, message=True, claims=claims)
    inline = sent(after, versions[1])
    claim = claim_of(BUCKET, after.source, "a-1", inline.value or b"")
    await blobs.put(claim.name, inline.value or b"", claim.content_type)
    headers = with_claim([*inline.headers], claim)
    lane = await opened(
        fake, inline._replace(value=b"", headers=headers), number=_home(fake), app=versions[0]
    )
    await fake.until(lambda: blobs.requests["get"] and lane.lane.counters.waiting == 1)
    await pass_time(fake, 300.0)
    await lane.stop()
    assert await dead_letters(fake, after.source) == []
    again = await fake.open(_home(fake), app=versions[1])
    await fake.until(lambda: again.lane.counters.handled == 1 and idle([again]) and not again.lane.backlog)
    assert await counted(fake) == {"a": 1}


async def test_an_unreadable_older_value_says_who_wrote_it(fake: FakeWorld) -> None:
    (before, after), versions = await two_versions(fake, "a number is a text", "avro", message=True)
    lane = await opened(fake, sent(before, versions[0]), number=_home(fake), app=versions[1])
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await lane.stop()
    (letter,) = await dead_letters(fake, after.source)
    text = dict(letter.headers)["dlq-error-message"].decode()
    assert "an earlier version of the application wrote it, with schema" in text
    assert "in which price is long now, and was string" in text
    assert "of no kind that is known" not in text


@pytest.mark.promise("renamed-fields")
@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (GONE, "the version before cannot read the new one: reader field missing default value"),
        (
            "a field with defaults has another name",
            "b is gone and bb new: if it is a rename, its values are lost",
        ),
    ],
)
async def test_a_worker_says_that_its_classes_are_others(
    fake: FakeWorld, change: str, told: str, codecs: str
) -> None:
    with capture_logs() as logs:
        await two_versions(fake, change, codecs, message=True)
    said = [each for each in logs if each["event"] == "class_changed"]
    assert [each["this_is"] for each in said] == ["newer", "older"]
    for each in said:
        assert any(told in why for why in each["why"])


async def test_a_worker_is_silent_on_a_change_both_can_read(fake: FakeWorld) -> None:
    with capture_logs() as logs:
        await two_versions(fake, "a field with a default is new", "avro", message=True)
    assert [each for each in logs if each["event"] == "class_changed"] == []


def _home(world: World) -> int:
    """The lane of the key "a"."""
    return world.app.layout.lane_of(world.app.layout.partition_of(b"a"))
