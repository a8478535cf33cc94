"""A worker of a service that counts payments, in two versions of its classes. The second has no `note` any
more; as that had no default, version 1 cannot read what version 2 writes.
"""

import os
from typing import Any

from streams import (
    Message,
    Outcome,
    Row,
    Service,
    Table,
    Worker,
    choreography,
    json_without_schema,
    on,
    outcome,
)
from streams.model.choreography import Choreography
from streams.model.codecs import MakeCodec, Schemas, avro
from streams.model.schema_versions import nothing_frozen

#: Of the environment: which version, and whether its codecs are `avro` or `json`.
VERSION, CODECS = "TWO_VERSIONS_VERSION", "TWO_VERSIONS_CODECS"
#: The fields of a version beside those that both have.
FIELDS: dict[str, dict[str, Any]] = {"1": {"note": str}, "2": {}}


def wiring_of(version: str, topic: str) -> tuple[Choreography, Any, Table[Any]]:
    """The wiring of a version, its message and its table. The annotations must be real, not text."""
    fields = FIELDS[version]
    head = {"TOPIC": topic, "key": property(lambda paid: paid.customer), "__module__": __name__}
    Paid = type(Message)(  # noqa: N806 - a class
        "Paid",
        (Message,),
        {**head, "__annotations__": {"customer": str, **fields}},
        frozen=True,
        kw_only=True,
    )
    annotations = {"__annotations__": {"payments": int, **fields}, "__module__": __name__}
    Account = type(Row)("Account", (Row,), annotations, frozen=True, kw_only=True)  # noqa: N806
    accounts = Table("accounts", Account)

    @Service("bank").handler(account=accounts)
    def pay(paid: Paid, account: Account | None) -> Outcome:  # type: ignore[valid-type]
        payments = 1 + (account.payments if account else 0)  # type: ignore[attr-defined]
        return outcome(account=Account(payments=payments, **dict.fromkeys(fields, version)))

    return choreography(on(Paid, pay)), Paid, accounts


def codecs_of(name: str, schemas: Schemas) -> MakeCodec:
    return avro(nothing_frozen, schemas) if name == "avro" else json_without_schema


def topic_of(codecs: str) -> str:
    return f"two-versions.{codecs}.paid"


if VERSION in os.environ:
    chosen = os.environ[CODECS]
    wiring, *_ = wiring_of(os.environ[VERSION], topic_of(chosen))
    app = Worker(wiring, codecs=lambda schemas: codecs_of(chosen, schemas))
