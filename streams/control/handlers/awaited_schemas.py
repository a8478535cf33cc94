"""Schemas that messages wait for, for pages, commands and the worker's health."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from streams.control.base.merging import each_by, total
from streams.engine.waiting.gate import HandlerGate
from streams.model.envelope import rfc3339

#: Schemas that an answer names: anybody can make up fingerprints.
MOST_NAMED = 20


class AwaitedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A schema that no worker has announced, and how many keys have a message first that waits for it, for a
    handler. `since`: when the first of them began to. `newer`: it is announced, and this worker is of an
    earlier version that cannot read it.
    """

    schema: str
    handler: str
    keys: Annotated[int, total]
    since: Annotated[str, min]
    newer: Annotated[bool, any] = False


#: Answers of several lanes as one.
longest_awaited = each_by(
    "schema", "handler", order=lambda each: (each.since, each.schema, each.handler), most=MOST_NAMED
)


def awaited(gates: Iterable[HandlerGate]) -> list[AwaitedAnswer]:
    """The schemas that messages behind these gates wait for, longest first."""
    here = [
        AwaitedAnswer(
            schema=schema,
            handler=gate.handler,
            keys=waits.keys,
            since=rfc3339(waits.since),
            newer=waits.newer,
        )
        for gate in gates
        for schema, waits in gate.unread.awaited().items()
    ]
    found: list[AwaitedAnswer] = longest_awaited([here])
    return found


def warning(each: AwaitedAnswer) -> str:
    """The warning for operators."""
    keys = f"{each.keys} keys wait" if each.keys > 1 else "1 key waits"
    if each.newer:
        return (
            f"{keys} for {each.handler} since {each.since}: a newer version of the application wrote them,"
            f" with schema {each.schema}, and this worker cannot read that; deploy the newer version"
        )
    return (
        f"{keys} for schema {each.schema}, for {each.handler}, since {each.since}:"
        " it is not announced; start a worker that has it"
    )
