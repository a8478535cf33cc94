"""The worker of an application, made from a wiring, settings and resources, and started by Faust's command.

    app = Worker(choreography(on(OrderPaid, earn)))

Run it with `faust -A yourmodule worker`. Several workers share the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from streams.errors import MissingExtra, WiringError
from streams.host import commands as commands
from streams.host.access import broker_urls
from streams.host.agents_app import AgentsApp
from streams.host.app import LaneApp
from streams.host.client import Producer
from streams.model.application import Application
from streams.model.choreography import Choreography
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import JsonCodec, MakeCodec, Schemas, avro, check_types
from streams.model.message import Row
from streams.model.schema_versions import ClassAndSchemaDiffer, nothing_frozen
from streams.model.table import Table as LaneTable
from streams.ports import Faults
from streams.settings import Settings
from streams.system import SystemClock
from streams.worker import has_room

if TYPE_CHECKING:
    from streams.saga.views import ChoreographedSaga
    from streams.worker.tables import TableReader

R = TypeVar("R", bound=Row)

#: The resource that each worker has.
CLOCK = "clock"
#: Beside the service's own resources; no parameter of a handler has such a name.
_CLAIMS = "claim checks"


def _claims(settings: Settings) -> AbstractAsyncContextManager[ClaimChecks | None]:
    """The claim checks that settings ask for, if they name an object store. Raises MissingExtra."""
    if settings.bucket() is None:
        return nullcontext()
    from streams.s3 import claim_checks

    return claim_checks(settings)


def _declared(name: str) -> Any:
    """The option of Faust's own app under this name."""
    return property(lambda self: getattr(self.agents_app, name), doc=f"Faust's own `{name}` (docs/faust.md).")


def _refused(name: str) -> Any:
    """Options of Faust's app that a worker does not have: its pages are complete, and for operators alone."""

    def refuse(*_: Any, **__: Any) -> Any:
        """Raises WiringError: a worker serves its own pages and no others."""
        raise WiringError(
            f"@app.{name}: a worker serves its own pages and no others. Serve yours by an ASGI application"
            " beside it, as `agents/api` does, or by an app of Faust's own with a web server (docs/faust.md)"
        )

    return staticmethod(refuse)


class Worker(LaneApp):
    """A worker of an application. It reads its settings when it is made, and connects when it is started.

    Arguments:
        wiring: which handlers take which message.
        settings: None reads them from the environment (`STEADFAUST_*`), where a mistake ends the process.
        schemas: returns the frozen Avro schema of a topic or table as text. If it raises LookupError, or is
            not given, the schema is derived from the class.
        codecs: makes codecs other than Avro; it gets the schemas that writers have announced. For JSON see
            `json_without_schema`.
        resources: values for keyword-only parameters of handlers, by name. An async context manager is
            entered in the worker's event loop when the worker starts, and left when it stops. `clock` is
            predefined.
        choreographed: choreographies that operators see as sagas.
        faults: fault points of the commit protocol, for tests.
        faust: options of `faust.App` for plain agents.

    Faust's declarations (`agent`, `topic`, `Table`, `timer` and so on) go to `agents_app`, an app of Faust
    that runs beside the lanes if anything is declared on it (docs/faust.md).

    Large payloads go to the object store in the settings, if there is one.

    Raises WiringError for a message or row that cannot be encoded, or a resource that is missing.
    """

    def __init__(
        self,
        wiring: Choreography,
        *,
        settings: Settings | None = None,
        schemas: Callable[[str], str] = nothing_frozen,
        codecs: Callable[[Schemas], MakeCodec] | None = None,
        resources: Mapping[str, Any] | None = None,
        choreographed: Sequence[ChoreographedSaga] = (),
        faults: Faults | None = None,
        faust: Mapping[str, Any] | None = None,
    ) -> None:
        settings = settings or Settings.read_or_exit()
        self.wiring = wiring
        self.choreographed = tuple(choreographed)
        self._codecs = codecs or partial(avro, schemas)
        wiring.check_resources({CLOCK, *(resources or {})})
        self._check_types()
        super().__init__(
            settings,
            self._bind,
            resources={**(resources or {}), _CLAIMS: _claims(settings)},
            faults=faults,
        )
        self.agents_app = AgentsApp(settings, broker_urls(settings), faust or {})
        self.agents = self.agents_app.agents
        # Lanes have no such signals: what is connected to them gets those of the agents' group.
        self.on_rebalance_complete = self.agents_app.on_rebalance_complete
        self.on_partitions_assigned = self.agents_app.on_partitions_assigned
        self.on_partitions_revoked = self.agents_app.on_partitions_revoked

    agent = _declared("agent")
    channel = _declared("channel")
    crontab = _declared("crontab")
    service = _declared("service")
    stream = _declared("stream")
    task = _declared("task")
    timer = _declared("timer")
    topic = _declared("topic")
    Table = _declared("Table")
    GlobalTable = _declared("GlobalTable")
    SetTable = _declared("SetTable")
    SetGlobalTable = _declared("SetGlobalTable")
    tables = _declared("tables")
    page = _refused("page")
    table_route = _refused("table_route")

    async def on_joining(self) -> None:
        """Start Faust's own app, if there is anything for it."""
        if self.agents_app.wanted:
            self.agents_app.conf.canonical_url = self.conf.canonical_url
            self.agents_app.follow_cut(self.steadfaust.partitions)
            await self.add_runtime_dependency(self.agents_app)

    def client(self, source: str) -> Producer:
        """A client that sends this application's messages, for a script or another service. Use it with
        `async with`. Message ids must be unique within `source`. Large and binary payloads go to the object
        store, if the settings have one. Raises SettingsError if the settings have no broker.
        """
        settings = self.steadfaust
        return Producer(
            settings.brokers(),
            self._codecs(self.schemas),
            source=source,
            claims=_claims(settings),
            limit=settings.max_message_bytes,
        )

    def table(self, table: LaneTable[R], *, timeout: float = 60.0) -> TableReader[R]:
        """A reader of a table's rows from outside, in any process with these settings: `await
        app.table(POINTS).get("ada")`. It looks for the owner of a key for up to `timeout` seconds.
        """
        from streams.worker.tables import TableReader

        return TableReader(table, self.steadfaust, timeout=timeout)

    def _check_types(self) -> None:
        """Raises WiringError for a message or row that cannot be written, now, in place of at the start."""
        make = self._codecs(Schemas())
        rows = {name: table.row for name, table in self.wiring.tables().items()}
        for subject, kind in {**self.wiring.messages(), **rows}.items():
            try:
                codec = make(kind, subject)
            except ClassAndSchemaDiffer:
                continue  # logged at the start: the command that freezes schemas imports this
            if isinstance(codec, JsonCodec):
                check_types(kind)

    def _bind(self, opened: dict[str, Any], known: Schemas) -> Application:
        own = {name: resource for name, resource in opened.items() if name != _CLAIMS}
        app = Application(
            self.steadfaust.layout(),
            self.wiring,
            self._codecs(known),
            resources={CLOCK: SystemClock(), **own},
            lane_options=self.steadfaust.lane_options(),
            claims=opened[_CLAIMS],
        )
        app.follow_versions(known)
        if self.choreographed:
            from streams.saga.views import check_tables

            check_tables(self.choreographed, app.tables)
        if self.steadfaust.metrics and has_room("control"):
            from streams.control.sagas.indexes import followed_tables

            app.followed = followed_tables(app, self.choreographed)
        return app

    def _new_web(self) -> Any:
        if not has_room("control"):
            return super()._new_web()
        try:
            from streams.worker.web import LaneWeb  # wiring does without the packages of its pages
        except MissingExtra as error:
            raise SystemExit(f"error: {error}") from error

        return LaneWeb(self, self.choreographed)
