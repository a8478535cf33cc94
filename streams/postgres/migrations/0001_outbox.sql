-- The outbox: messages that commit with the rows they tell of, and are written to Kafka afterwards.
--
-- The columns are what both relays need: the key is aggregate_id, the value is payload, untouched, and each header
-- of the record has a column. id is the header ce_id too, aggregate_id is ce_subject, event_type is ce_type.
CREATE TABLE outbox (
    position           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                 text        NOT NULL UNIQUE,
    aggregate_type     text        NOT NULL,
    aggregate_id       text        NOT NULL,
    event_type         text        NOT NULL,
    -- A name that Kafka does not allow would stop a relay that writes by change data capture.
    topic              text        NOT NULL CHECK (topic ~ '^[a-zA-Z0-9._-]{1,249}$' AND topic NOT IN ('.', '..')),
    payload            bytea       NOT NULL,
    ce_specversion     text        NOT NULL DEFAULT '1.0',
    ce_source          text        NOT NULL,
    ce_time            text        NOT NULL,
    ce_correlationid   text        NOT NULL,
    schema_fingerprint text        NOT NULL,
    ce_causationid     text,
    ce_expirytime      text,
    ce_within          text,
    content_type       text,
    traceparent        text,
    created_at         timestamptz NOT NULL DEFAULT now(),
    published_at       timestamptz,
    -- What became of it so far, when a broker would not take it.
    attempts           int         NOT NULL DEFAULT 0,
    last_error         text,
    retry_at           timestamptz,
    -- Relays share aggregates by this. PostgreSQL keeps the hash the same across versions: its own hash partitions
    -- stand on it.
    shard              smallint    NOT NULL GENERATED ALWAYS AS ((hashtextextended(aggregate_id, 0) & 63)::smallint) STORED
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_insert_scale_factor = 0.05);

-- What a relay reads: it stays small, however many published rows wait for their cleanup.
CREATE INDEX outbox_unpublished ON outbox (shard, position) WHERE published_at IS NULL;

-- What a broker has refused, which holds back later rows of its aggregate.
CREATE INDEX outbox_failed ON outbox (retry_at) WHERE published_at IS NULL AND retry_at IS NOT NULL;

-- Where published rows go, if they are to be archived.
CREATE TABLE outbox_archive (LIKE outbox INCLUDING DEFAULTS INCLUDING GENERATED, PRIMARY KEY (published_at, position));

-- The schemas that payloads were written with. A relay announces those that readers may not know before it
-- publishes the first row, so that nobody needs Kafka to commit one. Not unique: a long transaction that is the first
-- to use a schema would have all others wait for its end. They insert it, too.
CREATE TABLE outbox_schemas (
    fingerprint text        NOT NULL,
    schema      text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX outbox_schemas_by_fingerprint ON outbox_schemas (fingerprint);

-- A relay that goes to sleep sets this back, and whoever draws 1 next wakes it: one notification each time, and none
-- while it works. A sequence, because it belongs to no transaction: nobody waits for another one's commit.
CREATE UNLOGGED SEQUENCE outbox_wakeup;
