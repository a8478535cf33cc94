"""How Kafka Connect and Debezium are set up to relay the outbox: for this machine and for a cluster alike.

What differs between places is in the environment of Connect's workers (`CDC_*`), and so are the secrets: the
connector's configuration names them, and Connect keeps it in a topic. `ops/` has both as files.
"""

from __future__ import annotations

from streams.brokers import Security
from streams.model.claim import CONTENT_TYPE, DATAREF, SHA256, SIZE
from streams.model.envelope import (
    CAUSATION,
    CORRELATION,
    EXPIRY,
    FINGERPRINT,
    ID,
    SOURCE,
    SPEC_VERSION,
    SUBJECT,
    TIME,
    TRACEPARENT,
    TYPE,
    WITHIN,
)
from streams.postgres.replication_slot import PUBLICATION, SLOT_PREFIX

NAME = "outbox"
"""The connector's."""

HEADERS = {
    "ce_specversion": SPEC_VERSION,
    "id": ID,
    "event_type": TYPE,
    "ce_source": SOURCE,
    "aggregate_id": SUBJECT,
    "ce_time": TIME,
    "ce_correlationid": CORRELATION,
    "schema_fingerprint": FINGERPRINT,
    "ce_causationid": CAUSATION,
    "ce_expirytime": EXPIRY,
    "ce_within": WITHIN,
    "ce_dataref": DATAREF,
    "content_type": CONTENT_TYPE,
    "claim_sha256": SHA256,
    "claim_size": SIZE,
    "traceparent": TRACEPARENT,
}
"""Columns of the outbox, and the headers that they become: those of the polling relay, in its order."""

_PREFIX = "outbox"
_TRANSACTION = "10000"
_HEARTBEATS = "__debezium-heartbeat"
_BYTES = "io.debezium.converters.BinaryDataConverter"
_SECURITY = "org.apache.kafka.common.security"
_STRING = "org.apache.kafka.connect.storage.StringConverter"


def _env(name: str) -> str:
    return f"${{env:CDC_{name}}}"


def worker_settings() -> dict[str, str]:
    """The settings of a worker of Connect. Several workers of one group share the connector."""
    return {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "config.providers.env.param.allowlist.pattern": "CDC_.*",
        "bootstrap.servers": _env("BOOTSTRAP"),
        "group.id": "steadfaust-connect",
        "listeners": f"http://{_env('LISTEN')}",
        "rest.advertised.host.name": _env("HOST"),
        "config.storage.topic": "steadfaust-connect-configs",
        "offset.storage.topic": "steadfaust-connect-offsets",
        "offset.storage.partitions": "4",
        "status.storage.topic": "steadfaust-connect-status",
        "status.storage.partitions": "2",
        # Of the broker's own default: as many copies as it has brokers for.
        "config.storage.replication.factor": "-1",
        "offset.storage.replication.factor": "-1",
        "status.storage.replication.factor": "-1",
        # Offsets of the log and records are written in one transaction.
        "exactly.once.source.support": "enabled",
        "key.converter": _STRING,
        "header.converter": _STRING,
        # The payload's bytes as they are; heartbeats are no bytes, and are written as JSON.
        "value.converter": _BYTES,
        "value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.delegate.converter.type.schemas.enable": "false",
        "plugin.discovery": "service_load",
        "transaction.timeout.ms": _TRANSACTION,
        # A worker that was killed is missed after so long, and its connector moves or starts again.
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "2000",
        "scheduled.rebalance.max.delay.ms": "0",
        # A task has so long to stop, so that it does not touch the slot beside the next task. It reads
        # offsets from the brokers meanwhile. If they do not answer in time, Debezium leaves the task's reader
        # behind, and a relay ends that. A longer time would hurt: a task that is stopped while it starts
        # waits for its worker, and the worker waits for the task.
        "task.shutdown.graceful.timeout.ms": "20000",
    }


def access_settings(security: Security) -> dict[str, str]:
    """How a worker of Connect, and the clients that it makes, get in to brokers; none where anybody may."""
    if security.protocol == "PLAINTEXT":
        return {}
    found: dict[str, str] = {"security.protocol": security.protocol}
    if security.authenticated:
        of = f"{_SECURITY}.{'plain.Plain' if security.mechanism == 'PLAIN' else 'scram.Scram'}LoginModule"
        who = f'username="{_env("SASL_USERNAME")}" password="{_env("SASL_PASSWORD")}"'
        found |= {"sasl.mechanism": security.mechanism, "sasl.jaas.config": f"{of} required {who};"}
    if security.ca_file:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": _env("SSL_CA_FILE")}
    if security.certificate_file:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": _env("SSL_CERTIFICATE_FILE")}
    # Connect hands on nothing of its own to those.
    return {
        f"{of}{name}": value
        for of in ("", "producer.", "consumer.", "admin.")
        for name, value in found.items()
    }


def worker_properties(security: Security = Security()) -> str:
    """The same as a file that Connect reads."""
    settings = worker_settings() | access_settings(security)
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def connector_settings() -> dict[str, str]:
    """The settings of the connector. Longer than other functions: it is one list."""
    placed = ",".join(f"{column}:header:{header}" for column, header in HEADERS.items())
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": _env("DATABASE_HOST"),
        "database.port": _env("DATABASE_PORT"),
        "database.dbname": _env("DATABASE_NAME"),
        "database.user": _env("DATABASE_USER"),
        "database.password": _env("DATABASE_PASSWORD"),
        "topic.prefix": _PREFIX,
        "plugin.name": "pgoutput",
        # Nothing but the outbox: see `cdc/publication.py`, which makes the publication.
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "slot.name": SLOT_PREFIX + _env("DATABASE_NAME"),
        "slot.drop.on.stop": "false",
        "table.include.list": "public.outbox",
        "column.exclude.list": "public.outbox.shard",
        "skipped.operations": "u,d,t",
        # What waits when the slot begins, or begins again because the server dropped it, is read from the
        # table.
        "snapshot.mode": "when_needed",
        "snapshot.locking.mode": "none",
        "snapshot.select.statement.overrides": "public.outbox",
        "snapshot.select.statement.overrides.public.outbox": (
            "SELECT * FROM public.outbox WHERE published_at IS NULL ORDER BY position"
        ),
        "binary.handling.mode": "bytes",
        "tombstones.on.delete": "false",
        "extended.headers.enabled": "false",
        "poll.interval.ms": "20",
        # The slot advances while the outbox gets no rows, and other tables fill the log. Delete and insert:
        # only what is inserted is published.
        "heartbeat.interval.ms": "5000",
        "heartbeat.action.query": (
            "WITH d AS (DELETE FROM public.cdc_heartbeat) INSERT INTO public.cdc_heartbeat DEFAULT VALUES"
        ),
        "topic.heartbeat.prefix": _HEARTBEATS,
        "exactly.once.support": "required",
        # What a killed worker had open holds readers up for so long, and itself when it starts again.
        "producer.override.transaction.timeout.ms": _TRANSACTION,
        "transaction.boundary": "poll",
        "topic.creation.groups": "heartbeats",
        "topic.creation.heartbeats.include": f"{_HEARTBEATS}.*",
        "topic.creation.heartbeats.partitions": "1",
        "topic.creation.heartbeats.replication.factor": "-1",
        "topic.creation.heartbeats.retention.ms": "3600000",
        # A topic that was not declared must not stop all others.
        "topic.creation.default.partitions": "-1",
        "topic.creation.default.replication.factor": "-1",
        "predicates": "outbox",
        "predicates.outbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.outbox.pattern": f"{_PREFIX}\\.public\\.outbox",
        "transforms": "route,plain",
        "transforms.route.predicate": "outbox",
        "transforms.route.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.route.table.field.event.id": "id",
        "transforms.route.table.field.event.key": "aggregate_id",
        "transforms.route.table.field.event.payload": "payload",
        "transforms.route.route.by.field": "topic",
        "transforms.route.route.topic.replacement": "${routedByValue}",
        "transforms.route.route.tombstone.on.empty.payload": "false",
        "transforms.route.table.op.invalid.behavior": "warn",
        "transforms.route.table.fields.additional.placement": placed,
        # The router's own: ours is ce_id.
        "transforms.plain.type": "org.apache.kafka.connect.transforms.DropHeaders",
        "transforms.plain.headers": "id",
    }
