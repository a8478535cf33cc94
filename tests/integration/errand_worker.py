"""A worker of sagas whose only step fails until the file that STEADFAUST_PAPER names is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from streams import Message, PermanentError, Service, Table, Worker, choreography, on
from streams.model.codecs import json_without_schema
from streams.saga import (
    NEVER,
    Answer,
    Command,
    Participant,
    Participation,
    Repair,
    Reply,
    SagaRow,
    SagaTransition,
    done,
    orchestrate,
    saga,
)


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
app = Worker(
    wiring, codecs=lambda _: json_without_schema, resources={"paper": Path(os.environ["STEADFAUST_PAPER"])}
)
