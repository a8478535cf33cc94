"""Announcements: the compacted topic by which workers tell each other their schemas and the layout.

A schema is announced before the first message that is written with it (docs/adr/0005), and with it the
version of the class of each topic and table (docs/adr/0078). The layout is recorded at first start, and a
worker that was started with another one refuses (docs/adr/0001).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Annotated

import msgspec
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.brokers import Bootstrap
from streams.errors import ClusterUnavailable, LayoutMismatch, Undecodable, Unreadable
from streams.host.client import TopicReader
from streams.host.ended_sessions import EndedSessions
from streams.kafka.clients import KafkaOptions
from streams.model.application import Application
from streams.model.codecs import NO_JSON, Schemas
from streams.model.schema_changes import version_perils
from streams.ports import TP, Batch, Cluster, Damaged, Reader, Record

log = structlog.get_logger(__name__)

_LAYOUT = b"layout"
_SCHEMA = b"schema:"
#: Then the topic or table, and the fingerprint.
_VERSION = b"version:"
_ENDED = b"session-ended:"
_RETRY = 1.0
#: Seconds for which a logout waits for the other workers.
_TELL_WITHIN = 2.0
#: Characters of an error that the log has.
_SHOWN = 500


class EndedSession(msgspec.Struct):
    """A session of the pages that was ended, and until when it would have lasted, in epoch seconds."""

    until: float


class RecordedLayout(msgspec.Struct):
    """The layout as recorded at first start. Lanes may change with all workers stopped, partitions not."""

    partitions: Annotated[int, msgspec.Meta(ge=1)]


def announcement(fingerprint: str, schema: str) -> tuple[bytes, bytes]:
    """Key and value of the record that announces a schema."""
    return _SCHEMA + fingerprint.encode(), schema.encode()


class Announcements:
    """Reads what has been announced, announces what is missing, and follows what comes.

    All workers read the same records, and would stop for the same one: what is no announcement is passed by,
    logged and counted (`unreadable`), and what it should have announced stays unknown until it is written
    right one under its key.
    """

    def __init__(
        self,
        app: Application,
        schemas: Schemas,
        *,
        cluster: Cluster,
        bootstrap: Bootstrap,
        options: KafkaOptions | None = None,
        ended_sessions: EndedSessions | None = None,
    ) -> None:
        self._app = app
        self._schemas = schemas
        self._cluster = cluster
        self._bootstrap = bootstrap
        self._options = options or KafkaOptions()
        self._tp = TP(app.layout.announcements, 0)
        self._announced: set[str] = set()
        #: Of records that are none, digests of their keys: those who follow read them again.
        self._unreadable: set[bytes] = set()
        self._layout: RecordedLayout | None = None
        self._ended = ended_sessions if ended_sessions is not None else EndedSessions()
        #: Sessions that ended here and are not announced yet.
        self._untold: dict[str, float] = {}
        #: Keys of sessions that are over by now: their records are of no more use.
        self._over: set[bytes] = set()

    @property
    def unreadable(self) -> int:
        """The number of keys whose newest record is no announcement."""
        return len(self._unreadable)

    async def read(self) -> None:
        """Learn everything announced so far. Raises LayoutMismatch, or ClusterUnavailable."""
        await self._read()
        self._check_layout()
        self._ended.is_complete = True

    async def _read(self) -> None:
        reader = await self._cluster.reader()
        try:
            end = (await self._cluster.end_offsets([self._tp]))[self._tp]
            await reader.assign(await self._cluster.begin_offsets([self._tp]))
            while reader.position(self._tp) < end:
                self._learn(await reader.fetch(max_records=1000, timeout=0.5))
        finally:
            await reader.close()

    async def end_session(self, ident: str, until: float) -> None:
        """Announce to all workers that a session is over; later, if Kafka does not take it in time."""
        self._untold[ident] = until
        try:
            async with asyncio.timeout(_TELL_WITHIN):
                await self._tell_ended()
        except (ClusterUnavailable, TimeoutError) as error:
            log.warning(
                "logout_not_told",
                error=str(error) or f"Kafka did not accept it within {_TELL_WITHIN:g} s",
                action="announced once Kafka answers; until then other workers accept a copy of the session",
            )

    async def _tell_ended(self) -> None:
        sent = dict(self._untold)
        if sent:
            await self._produce(
                {
                    _ENDED + ident.encode(): msgspec.json.encode(EndedSession(until))
                    for ident, until in sent.items()
                }
            )
        for ident in sent:
            self._untold.pop(ident, None)

    async def follow(self) -> None:
        """Learn what others announce, until cancelled."""
        while True:
            try:
                reader = await self._cluster.reader()
                try:
                    await self._follow(reader)
                finally:
                    await reader.close()
            except Exception:
                log.exception("announcements_restart")
                await asyncio.sleep(_RETRY)

    async def _follow(self, reader: Reader) -> None:
        await reader.assign(await self._cluster.begin_offsets([self._tp]))
        while True:
            self._learn(await reader.fetch(max_records=1000, timeout=1.0))
            await self._tell_ended()

    def _learn(self, batches: list[Batch]) -> None:
        for batch in batches:
            for record in batch.records:
                place = _place(record)
                try:
                    self._take(record)
                    self._unreadable.discard(place)
                except (Unreadable, Undecodable, *NO_JSON) as error:
                    self._unreadable.add(place)
                    log.warning(
                        "announcement_unreadable",
                        topic=record.topic,
                        offset=record.offset,
                        error=str(error)[:_SHOWN],
                        action="skipped; if it is needed, write a correct record under the same key",
                    )

    def _take(self, record: Record) -> None:
        if isinstance(record, Damaged):
            raise Unreadable(record.why)
        key, value = record.key or b"", record.value or b""
        if key == _LAYOUT:
            self._layout = msgspec.json.decode(value, type=RecordedLayout)
        elif key.startswith(_SCHEMA):
            self._announced.add(self._schemas.add(value.decode(), record.offset))
        elif key.startswith(_VERSION) and value:
            subject, _, fingerprint = key.removeprefix(_VERSION).decode().rpartition(":")
            self._schemas.add_version(subject, fingerprint, value.decode(), record.offset)
        elif key.startswith(_ENDED) and value:
            self._take_ended(key, msgspec.json.decode(value, type=EndedSession).until)

    def _take_ended(self, key: bytes, until: float) -> None:
        if until > (now := time.time()):
            self._ended.add(key.removeprefix(_ENDED).decode(), until, now)
        else:
            self._over.add(key)

    def _check_layout(self) -> None:
        ours = self._app.layout.partitions
        if self._layout is not None and self._layout.partitions != ours:
            raise LayoutMismatch(
                f"{self._app.layout.app_id} was first started with {self._layout.partitions} partitions, this"
                f" worker is set to {ours}: set STEADFAUST_PARTITIONS={self._layout.partitions}"
            )

    async def announce(self) -> None:
        """Announce what is new of ours: before the first message is written with it. Warn of classes that are
        not as those of workers that run, or have run.
        """
        self._compare()
        missing: dict[bytes, bytes | None] = {
            key: value
            for key, value in (announcement(*each) for each in self._app.schemas().items())
            if key.removeprefix(_SCHEMA).decode() not in self._announced
        }
        if self._layout is None:
            missing[_LAYOUT] = msgspec.json.encode(RecordedLayout(self._app.layout.partitions))
        missing |= {
            _VERSION + f"{subject}:{fingerprint}".encode(): text.encode()
            for subject, (fingerprint, text) in self._app.versions().items()
            if not self._schemas.knows_version(subject, fingerprint)
        }
        missing |= dict.fromkeys(self._over)
        if missing:
            await self._produce(missing)
            await self._read()  # what is newer than ours is known by its place
        self._over.clear()

    def _compare(self) -> None:
        for subject, (fingerprint, text) in self._app.versions().items():
            newest = self._schemas.newest(subject)
            if newest is None or newest[0] == fingerprint:
                continue
            is_older = self._schemas.knows_version(subject, fingerprint)
            perils = version_perils(*((text, newest[1]) if is_older else (newest[1], text)))
            if perils:
                log.warning(
                    "class_changed",
                    subject=subject,
                    version=fingerprint,
                    other=newest[0],
                    this_is="older" if is_older else "newer",
                    why=perils,
                    action="while workers of both run, what the older cannot read waits, and what the newer"
                    " cannot read is a dead letter: docs/upgrading.md has how to change a class",
                )

    async def _produce(self, records: Mapping[bytes, bytes | None]) -> None:
        producer = AIOKafkaProducer(**self._options.connection(self._bootstrap), enable_idempotence=True)
        try:
            await producer.start()
            topic = self._tp.topic
            # Every delivery is looked at: flush would wait for them and report no failure.
            sent = [await producer.send(topic, key=k, value=v, partition=0) for k, v in records.items()]
            await asyncio.gather(*sent)
        except KafkaError as error:
            raise ClusterUnavailable(
                f"schemas could not be announced on {self._tp.topic}: {error!r}"
            ) from error
        finally:
            await producer.stop()


def _place(record: Record) -> bytes:
    """Short, and the same for records of one key; what cannot be read at all has none."""
    key = b"%d" % record.offset if isinstance(record, Damaged) else b"key:" + (record.key or b"")
    return blake2b(key, digest_size=16).digest()


async def learn_schemas(bootstrap: Bootstrap, topic: str, schemas: Schemas) -> None:
    """Learn all schemas that were announced on the topic, for programs that are no worker.

    Raises TopicMismatch, or ClusterUnavailable.
    """
    async with TopicReader(bootstrap, [topic]) as reader:
        async for record in reader.to_end():
            if isinstance(record, Damaged) or not (record.key or b"").startswith(_SCHEMA):
                continue
            with suppress(Undecodable, UnicodeDecodeError):  # workers tell of it
                schemas.add((record.value or b"").decode(), record.offset)
