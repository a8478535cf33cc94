-- name: insert
-- Insert messages in their order, one for each place of the arrays, and wake a relay if one sleeps.
WITH given AS (
    SELECT *
    FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[],
        $9::text[], $10::text[], $11::text[], $12::text[]
    ) WITH ORDINALITY AS each (
        id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,
        ce_correlationid, schema_fingerprint, ce_causationid, traceparent, place
    )
),
schemas AS (
    INSERT INTO outbox_schemas (fingerprint, schema)
    SELECT each.fingerprint, each.schema
    FROM unnest($13::text[], $14::text[]) AS each (fingerprint, schema)
    WHERE NOT EXISTS (SELECT FROM outbox_schemas AS known WHERE known.fingerprint = each.fingerprint)
    ON CONFLICT DO NOTHING
),
inserted AS (
    INSERT INTO outbox (
        id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,
        ce_correlationid, schema_fingerprint, ce_causationid, traceparent, created_at
    )
    SELECT
        id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,
        ce_correlationid, schema_fingerprint, ce_causationid, traceparent, clock_timestamp()
    FROM given
    ORDER BY place
)
-- A notification takes a lock on the whole database while its transaction commits: only the first of those
-- who insert while a relay sleeps sends one.
SELECT pg_notify('outbox', '')
FROM (SELECT nextval('outbox_wakeup') AS drawn OFFSET 0) AS wakeup
WHERE drawn = 1
