"""The worker of a service: what a wiring, settings and resources are made into, under Faust's command.

    app = Worker(choreography(on(OrderPaid, earn)))

`faust -A yourmodule worker` runs it; several of them share the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from streams.model.application import Application
from streams.model.choreography import Choreography
from streams.model.codecs import MakeCodec, Schemas, avro
from streams.model.schema_versions import nothing_frozen
from streams.ports import Faults
from streams.runtime.app import LaneApp
from streams.runtime.client import Producer
from streams.s3 import claim_checks
from streams.saga.views import ChoreographedSaga
from streams.settings import Settings
from streams.system import SystemClock

#: Beside the service's own resources; no parameter of a handler has such a name.
_CLAIMS = "claim checks"


class Worker(LaneApp):
    """A worker of a service. It reads its settings now, and asks for a broker when it is started.

    Arguments:
        wiring: which handlers take which message.
        settings: None: those of the environment (`STEADFAUST_*`); a mistake in them ends the process.
        schemas: the frozen Avro schema of a topic's messages or a table's rows, as text; where it raises
            LookupError, and without it, the one that is derived from the class.
        codecs: in place of Avro, given where writers' schemas are learnt; JSON by `json_without_schema`.
        resources: what handlers name as keyword-only parameters. An async context manager is entered when the
            worker starts, in its event loop, and left when it stops. A `clock` is there already.
        choreographed: sagas that no saga definition conducts, for operators to see.
        faults: what happens at the points of the commit protocol, for tests.

    Large payloads go to the object store that the settings name, if they name one.
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
    ) -> None:
        settings = settings or Settings.read_or_exit()
        self.wiring = wiring
        self._codecs = codecs or partial(avro, schemas)
        super().__init__(
            settings,
            self._bind,
            resources={**(resources or {}), _CLAIMS: claim_checks(settings)},
            faults=faults,
            choreographed=choreographed,
        )

    def client(self, source: str) -> Producer:
        """A producer of this application's messages, for a script or another service: use it `async with`.
        Ids are unique within its `source`. Raises SettingsError when nothing names a broker.
        """
        return Producer(self.steadfaust.brokers(), self._codecs(self.schemas), source=source)

    def _bind(self, opened: dict[str, Any], known: Schemas) -> Application:
        own = {name: resource for name, resource in opened.items() if name != _CLAIMS}
        return Application(
            self.steadfaust.layout(),
            self.wiring,
            self._codecs(known),
            resources={"clock": SystemClock(), **own},
            lane_options=self.steadfaust.lane_options(),
            claims=opened[_CLAIMS],
        )
