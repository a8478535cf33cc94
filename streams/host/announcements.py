"""Announcements: a compacted topic with schemas, class versions, the layout and ended sessions.

A worker announces a schema before it writes the first message with it (docs/adr/0005), together with the
class versions of its topics and tables (docs/adr/0078). The layout is recorded at the first start. A worker
with a different number of partitions refuses to start (docs/adr/0001).
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
#: Followed by the topic or table, and the fingerprint.
_VERSION = b"version:"
_ENDED = b"session-ended:"
_RETRY = 1.0
#: Seconds that a logout waits for its announcement.
_TELL_WITHIN = 2.0
#: Maximum characters of an error in the log.
_SHOWN = 500


class EndedSession(msgspec.Struct):
    """A session of the pages that was ended, and until when it would have lasted, in epoch seconds."""

    until: float


class RecordedLayout(msgspec.Struct):
    """The layout that was recorded at the first start. Its partitions cannot change; the lane count, which is
    recorded elsewhere, can change while all workers are stopped.
    """

    partitions: Annotated[int, msgspec.Meta(ge=1)]


def announcement(fingerprint: str, schema: str) -> tuple[bytes, bytes]:
    """Key and value of the record that announces a schema."""
    return _SCHEMA + fingerprint.encode(), schema.encode()


class Announcements:
    """Reads earlier announcements, writes those that are missing, and follows new ones.

    A record that is no announcement is skipped, logged and counted (`unreadable`). All workers read the same
    records, so an error would stop them all. What the record should have announced stays unknown until a
    correct record is written under its key.
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
        #: Digests of the keys of unreadable records. A set, because `follow` reads the topic again.
        self._unreadable: set[bytes] = set()
        self._layout: RecordedLayout | None = None
        self._ended = ended_sessions if ended_sessions is not None else EndedSessions()
        #: Sessions that ended on this worker and are not announced yet.
        self._untold: dict[str, float] = {}
        #: Keys of sessions that have expired by now. `announce` deletes their records.
        self._over: set[bytes] = set()

    @property
    def unreadable(self) -> int:
        """The number of keys with a newest record that is no announcement."""
        return len(self._unreadable)

    async def read(self) -> None:
        """Read everything announced so far. Raises LayoutMismatch or ClusterUnavailable."""
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
        """Announce to all workers that a session has ended. If Kafka does not accept it in time, it is
        announced later.
        """
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
        """Read announcements of all workers, until cancelled."""
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
        """Announce this worker's new schemas and class versions, before it writes the first message with
        them. Log a warning for changed classes if older and newer workers cannot read each other's data.
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
            await self._read()  # learn the offsets of our records, which tell newer versions from older ones
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
            # Await each delivery, because flush would report no failures.
            sent = [await producer.send(topic, key=k, value=v, partition=0) for k, v in records.items()]
            await asyncio.gather(*sent)
        except KafkaError as error:
            raise ClusterUnavailable(
                f"schemas could not be announced on {self._tp.topic}: {error!r}"
            ) from error
        finally:
            await producer.stop()


def _place(record: Record) -> bytes:
    """A digest of the record's key; of its offset for a damaged record, which has no readable key."""
    key = b"%d" % record.offset if isinstance(record, Damaged) else b"key:" + (record.key or b"")
    return blake2b(key, digest_size=16).digest()


async def learn_schemas(bootstrap: Bootstrap, topic: str, schemas: Schemas) -> None:
    """Read all schemas announced on the topic. For programs that are not workers.

    Raises TopicMismatch or ClusterUnavailable.
    """
    async with TopicReader(bootstrap, [topic]) as reader:
        async for record in reader.to_end():
            if isinstance(record, Damaged) or not (record.key or b"").startswith(_SCHEMA):
                continue
            with suppress(Undecodable, UnicodeDecodeError):  # workers log it
                schemas.add((record.value or b"").decode(), record.offset)
