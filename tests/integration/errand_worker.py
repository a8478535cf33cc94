"""A worker of sagas whose only step fails until the file that STEADFAUST_PAPER names is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from streams.errors import PermanentError
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.codecs import Schemas, json_without_schema
from streams.model.handlers import Service
from streams.model.message import Message
from streams.model.table import Table
from streams.runtime.app import LaneApp
from streams.saga.definition import NEVER, saga
from streams.saga.engine import orchestrate
from streams.saga.messages import Command, Repair, Reply, SagaTransition
from streams.saga.participant import Answer, Participant, done
from streams.saga.participation import Participation
from streams.saga.state import SagaRow
from streams.settings import Settings
from streams.system import SystemClock


class ErrandReply(Reply, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "errands.saga.replies"


class ErrandTransition(SagaTransition, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "errands.saga.transitions.v1"


class ErrandRepair(Repair, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "errands.saga.repairs"


class ErrandWanted(Message, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "errands.errand.wanted.v1"
    errand: str

    @property
    def key(self) -> str:
        return self.errand


class Print(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "printer.commands.print"
    REPLY = ErrandReply


Errand = saga("errand", started_by=ErrandWanted).pivot("ticket", Print, retry=NEVER)
errand = orchestrate(
    Errand,
    service=Service("errands"),
    table=Table("errands", SagaRow),
    log=ErrandTransition,
    repairs=ErrandRepair,
)
printer = Participant(Service("printer"), Table("printer-steps", Participation))


@printer.command()
def print_ticket(command: Print, *, paper: Path) -> Answer:
    if not paper.exists():
        raise PermanentError(f"no paper for {command.key}")
    return done()


wiring = choreography(
    on(ErrandWanted, errand), on(ErrandReply, errand), on(ErrandRepair, errand), on(Print, print_ticket)
)


def _bind(_: dict[str, Any], __: Schemas) -> Application:
    settings = Settings()
    resources = {"clock": SystemClock(), "paper": Path(os.environ["STEADFAUST_PAPER"])}
    return Application(settings.layout(), wiring, json_without_schema, resources=resources)


app = LaneApp(Settings(), _bind)
