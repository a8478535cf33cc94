"""An application, bound: each topic with its codec and handlers, each handler with its rows and resources.

Made once at start from the choreography; everything that the hot path can have ready is made ready here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streams.errors import WiringError
from streams.kafka.records.writing import header_bytes
from streams.model.bound import BoundHandler, BoundMessage, BoundRoute, BoundTable
from streams.model.choreography import AnyHandler, Choreography
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import JsonCodec, MakeCodec, Schemas, row_prefix, version_of
from streams.model.envelope import FINGERPRINT, SOURCE, TYPE
from streams.model.handlers import CONSUMED
from streams.model.layout import BUILT_IN, CLAIMS, Layout, dead_letter_topic, retry_topic
from streams.model.message import Message
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RETRY_TOPICS, RetryPolicy
from streams.ports import TP
from streams.units import DAY, MIB

#: Tables of the lane itself.
_TAKEN = (*BUILT_IN, CLAIMS)


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """Options of lanes. Times are in seconds, sizes in bytes.

    Attributes:
        max_batch: maximum messages in one transaction.
        max_batch_bytes: maximum bytes in one transaction: messages and their outcomes, as objects in memory.
        max_backlog: maximum backlog of a lane: messages taken and not yet committed.
        max_backlog_bytes: bytes of the backlog, outcomes included, above which the lane reads no more.
        max_worker_backlog: maximum backlog of all lanes of a worker together. Each lane may fill its share.
        max_worker_backlog_bytes: the same in bytes.
        loopback: whether lanes handle what they send to themselves in the transaction that writes it.
        max_ahead: maximum offsets by which other keys are committed ahead of a slow message; 0 means that all
            messages of its partition number wait.
        max_in_flight: maximum keys of a lane with a running async handler.
        linger: minimum wait of a commit for more messages (`engine.way.commit.rest`).
        max_message_bytes: the broker's limit for a record, rows included.
        inbox_retention: minimum time for which handled ids are kept.
        dead_letter_retention: how long a dead letter is kept.
        message_retention: longest retention of message topics; payloads by reference are kept as long.
        delete_retention: how long changelogs keep tombstones; older local stores are rebuilt.
        stop_timeout: how long a commit in flight may take when the lane is stopped.
        fenced_pause: wait after being fenced, so that the group can say who owns the lane now.
        retry: retry policy of handlers without their own.
        breaker: breaker policy of handlers without their own.
        outage_patience: during a full outage of a handler, how long delayed retries of a message do not count
            against the limit; 0 means that each counts.
        schema_patience: how long a message waits for its schema to be announced, or for a worker that can
            read it, before it is dead-lettered.
        max_waiting: maximum messages in the queue of an ordering key, used by tests. In production the limit
            is `max_waiting_bytes`.
        max_waiting_bytes: maximum bytes in the queue of an ordering key; further messages are dead-lettered.
        hold_back: how long a lane does not read a partition while such a queue is half full; 0 means never.
        max_replays: failed replays after which a dead letter is parked.
        edit_dead_letters: whether operators may edit a dead letter before a replay.
        saga_limit: age at which an unfinished saga is shown as stalled.
    """

    max_batch: int = 4000
    max_batch_bytes: int = 16 * MIB
    max_backlog: int = 12_000
    max_backlog_bytes: int = 24 * MIB
    max_worker_backlog: int = 18_000
    max_worker_backlog_bytes: int = 24 * MIB
    max_ahead: int = 10_000
    loopback: bool = True
    max_in_flight: int = 64
    linger: float = 0.0
    max_message_bytes: int = 1_000_000
    inbox_retention: float = 15 * DAY
    dead_letter_retention: float = 14 * DAY
    message_retention: float = 7 * DAY
    delete_retention: float = DAY
    stop_timeout: float = 3.0
    fenced_pause: float = 3.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    outage_patience: float = 3 * DAY
    schema_patience: float = DAY
    max_waiting: int = 1_000_000
    max_waiting_bytes: int = 64 * MIB
    hold_back: float = 900.0
    max_replays: int = 3
    edit_dead_letters: bool = False
    saga_limit: float = 60.0

    @property
    def claim_retention(self) -> float:
        """How long an object is kept after the last message that referred to it was read or written."""
        return max(self.message_retention, self.dead_letter_retention, self.inbox_retention)


class Application:
    """All that lanes need to know. Raises WiringError when a resource that a handler names is missing.

    Without `claims` no payload is checked in, and one that comes by reference cannot be fetched.
    """

    def __init__(
        self,
        layout: Layout,
        wiring: Choreography,
        codecs: MakeCodec,
        *,
        resources: Mapping[str, Any] | None = None,
        lane_options: LaneOptions | None = None,
        claims: ClaimChecks | None = None,
    ) -> None:
        self.layout = layout
        self.wiring = wiring
        self.claims = claims
        self.lane_options = lane_options or LaneOptions()
        wiring.check_resources(resources or {})
        resources = {CONSUMED: frozenset(wiring.routes), **(resources or {})}
        row_codecs = {name: codecs(table.row, name) for name, table in wiring.tables().items()}
        self.tables = {
            name: BoundTable(name, codec, layout.changelog(name), row_prefix(codec))
            for name, codec in row_codecs.items()
        }
        if reserved := [name for name in self.tables if name in _TAKEN or name.startswith("_")]:
            raise WiringError(f"table names {reserved} are reserved for the lane itself")
        #: Tables, built-in ones too, of which each change is marked for an index by status; set before lanes
        #: are made, by the keeper of such an index (docs/adr/0039).
        self.followed: frozenset[str] = frozenset()
        #: Changelog topic -> the table it belongs to, built-in ones too.
        built_in = BUILT_IN if claims is None else _TAKEN
        self.changelogs = {layout.changelog(table): table for table in [*self.tables, *built_in]}
        self.message_codecs = {topic: codecs(message, topic) for topic, message in wiring.messages().items()}
        #: Topics whose messages lanes may handle in the transaction that writes them (docs/adr/0046).
        self.looped = frozenset(filter(self._is_looped, wiring.routes))
        bound = {handler.name: self._bind(handler, resources) for handler in wiring.handlers()}
        #: Every handler, by name.
        self.handlers = bound
        #: Topics that it handles and that are not its own: see `name_beside`.
        self.others: frozenset[str] = frozenset()
        #: What an earlier version has left beside those: the topics of their retries and dead letters.
        self.former: dict[str, str] = {}
        self.routes = self._routes()
        #: Repartition topic -> the topic from outside whose records go through it (docs/adr/0076).
        self.repartitions = {
            layout.repartition(topic): topic for topic in self.routes if self.routes[topic].outside
        }
        #: Handlers and topics of timers without a handler here, which the log has named once.
        self.unheard_timers: set[tuple[str, str]] = set()
        #: By handler, the names of timers that it has set since the start; None: no more are noted. Sagas
        #: cancel the deadlines of their steps, those that have passed as well.
        self.timer_names: dict[str, set[str] | None] = {
            handler.name: None for handler in wiring.handlers() if handler.must_hear
        }

    def _is_looped(self, topic: str) -> bool:
        """Its handlers act on nothing outside, and only the lane of a key sends to it under that key."""
        route = self.wiring.routes[topic]
        acts = any(handler.is_async for handler in route.handlers)
        same_key = topic in self.wiring.sent and route.message.SAME_KEY
        return same_key and not acts and not self.wiring.uses_inbox(topic)

    def name_beside(self, others: frozenset[str], former: Mapping[str, str]) -> None:
        """Retries and dead letters of these topics of `others` go to topics that are named with the
        application's id. `former` has the ones of earlier versions that are there, each with the topic that
        it is of. Called before lanes are made: only the cluster knows whose topic one is.
        """
        self.others, self.former = others, dict(former)
        self.routes = self._routes()

    def _routes(self) -> dict[str, BoundRoute]:
        return {
            topic: self._route(topic, tuple(self.handlers[handler.name] for handler in route.handlers))
            for topic, route in self.wiring.routes.items()
        }

    def _route(self, topic: str, handlers: tuple[BoundHandler, ...]) -> BoundRoute:
        source = self.wiring.routes[topic].source
        beside = self.layout.app_id if topic in self.others or source is not None else ""
        return BoundRoute(
            topic,
            self.message_codecs[topic] if source is None else source,
            handlers,
            tuple((handler, None) for handler in handlers),
            self.wiring.uses_inbox(topic),
            topic not in self.wiring.sent and source is None,
            any(handler.is_async for handler in handlers),
            topic in self.looped,
            dead_letter_topic(topic, beside),
            tuple(retry_topic(topic, tier, beside) for tier in range(1, RETRY_TOPICS + 1)),
            source,
        )

    def taker(self, handler: str, topic: str) -> BoundHandler | None:
        """The handler of a name, if it takes a topic's messages; None: it is gone, or takes them no more."""
        route = self.routes.get(topic)
        handlers = () if route is None else route.handlers
        return next((one for one in handlers if one.name == handler), None)

    @property
    def sources(self) -> list[str]:
        """The topics that lanes consume."""
        return [*self.routes, *self.repartitions, self.layout.operations]

    def schemas(self) -> dict[str, str]:
        """Fingerprint -> text of every schema that this application writes with."""
        codecs = [*self.message_codecs.values(), *(table.codec for table in self.tables.values())]
        return {codec.fingerprint.decode(): codec.schema for codec in codecs if codec.schema}

    def versions(self) -> dict[str, tuple[str, str]]:
        """Topic or table -> the version of its class: a fingerprint, and the schema that it is of."""
        kinds = {name: table.row for name, table in self.wiring.tables().items()} | self.wiring.messages()
        codecs = {name: table.codec for name, table in self.tables.items()} | self.message_codecs
        found = {subject: version_of(kinds[subject], codec) for subject, codec in codecs.items()}
        return {subject: version for subject, version in found.items() if version is not None}

    def follow_versions(self, schemas: Schemas) -> None:
        """Let what is JSON wait where a newer version of its class has been announced, too."""
        codecs = {name: table.codec for name, table in self.tables.items()} | self.message_codecs
        for subject, (fingerprint, _) in self.versions().items():
            if isinstance(codec := codecs[subject], JsonCodec):
                codec.follow(schemas, subject, fingerprint)

    def _bind(self, handler: AnyHandler, resources: Mapping[str, Any]) -> BoundHandler:
        given = {name: resources[name] for name in handler.resources}
        source = f"{self.layout.app_id}/{handler.service}".encode()
        return BoundHandler(
            handler.name,
            handler.name.encode(),
            partial(handler.function, **given) if given else handler.function,
            handler.is_async,
            handler.wants_envelope,
            tuple(
                (name, self.tables[row.table.name], row.subkey, row.any) for name, row in handler.rows.items()
            ),
            {message: self._bind_message(message, source) for message in handler.sends},
            handler.retry or self.lane_options.retry,
            handler.breaker or self.lane_options.breaker,
            handler.order_by,
            handler.on_give_up,
            handler.accepts_expired,
        )

    def _bind_message(self, message: type[Message], source: bytes) -> BoundMessage:
        codec = self.message_codecs[message.TOPIC]
        headers = ((TYPE, message.TOPIC.encode()), (SOURCE, source), (FINGERPRINT, codec.fingerprint))
        partitions = tuple(TP(message.TOPIC, number) for number in range(self.layout.partitions))
        return BoundMessage(
            message.TOPIC,
            codec,
            headers,
            b"".join(header_bytes(*each) for each in headers),
            partitions,
            message.BINARY,
            message.EXPIRES,
            message.WITHIN,
            message.LOGGED,
            message.SAME_KEY,
        )
