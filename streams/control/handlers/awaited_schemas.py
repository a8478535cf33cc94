"""Schemas that messages wait for, for pages, commands and the worker's health."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

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
    keys: int
    since: str
    newer: bool = False


def awaited(gates: Iterable[HandlerGate]) -> list[AwaitedAnswer]:
    """The schemas that messages behind these gates wait for, longest first."""
    return merged(
        AwaitedAnswer(
            schema=schema,
            handler=gate.handler,
            keys=found.keys,
            since=rfc3339(found.since),
            newer=found.newer,
        )
        for gate in gates
        for schema, found in gate.unread.awaited().items()
    )


def merged(answers: Iterable[AwaitedAnswer]) -> list[AwaitedAnswer]:
    """Answers of several lanes as one: those that wait longest, no more than are named."""
    found: dict[tuple[str, str], AwaitedAnswer] = {}
    for each in answers:
        name = (each.schema, each.handler)
        before = found.get(name)
        if before is not None:
            each = msgspec.structs.replace(  # noqa: PLW2901 - it is one with those before
                each,
                keys=before.keys + each.keys,
                since=min(before.since, each.since),
                newer=before.newer or each.newer,
            )
        found[name] = each
    return sorted(found.values(), key=lambda each: (each.since, each.schema, each.handler))[:MOST_NAMED]


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
