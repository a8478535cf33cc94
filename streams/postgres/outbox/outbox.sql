-- name: insert
-- Insert messages in their order, one for each place of the arrays, and wake a relay if one sleeps.
WITH given AS (
    SELECT *
    FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[],
        $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[]
    ) WITH ORDINALITY AS each (
        id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,
        ce_correlationid, schema_fingerprint, ce_causationid, traceparent, content_type, ce_dataref, claim_sha256,
        claim_size, place
    )
),
schemas AS (
    INSERT INTO outbox_schemas (fingerprint, schema)
    SELECT each.fingerprint, each.schema
    FROM unnest($17::text[], $18::text[]) AS each (fingerprint, schema)
    WHERE NOT EXISTS (SELECT FROM outbox_schemas AS known WHERE known.fingerprint = each.fingerprint)
),
inserted AS (
    INSERT INTO outbox (
        id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,
        ce_correlationid, schema_fingerprint, ce_causationid, traceparent, content_type, ce_dataref, claim_sha256,
        claim_size, created_at
    )
    SELECT
        id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,
        ce_correlationid, schema_fingerprint, ce_causationid, traceparent, content_type, ce_dataref, claim_sha256,
        claim_size, clock_timestamp()
    FROM given
    ORDER BY place
)
SELECT outbox_wake()

-- name: status
-- Counted up to a million: it is asked every few seconds. Of each shard only the first row is looked at for the age.
SELECT
    (SELECT count(*) FROM (SELECT FROM outbox WHERE published_at IS NULL LIMIT 1000000) AS waiting) AS unpublished,
    (SELECT count(*) FROM outbox WHERE published_at IS NULL AND retry_at IS NOT NULL) AS failed,
    (
        SELECT coalesce(extract(epoch FROM clock_timestamp() - min(first.created_at)), 0)::float8
        FROM generate_series(0, 63) AS each (shard)
        CROSS JOIN LATERAL (
            SELECT created_at
            FROM outbox
            WHERE outbox.shard = each.shard AND published_at IS NULL
            ORDER BY position
            LIMIT 1
        ) AS first
    ) AS oldest_seconds,
    pg_total_relation_size('outbox') AS table_bytes

-- name: list
-- $1 waiting, failed or published; $2 topic, $3 aggregate, empty for any; behind position $4, $5 at most.
SELECT
    position, id, aggregate_type, aggregate_id, topic, octet_length(payload) AS bytes, created_at, published_at,
    attempts, last_error, retry_at
FROM outbox
WHERE CASE $1::text
        WHEN 'published' THEN published_at IS NOT NULL
        WHEN 'failed' THEN published_at IS NULL AND retry_at IS NOT NULL
        ELSE published_at IS NULL
      END
  AND ($2 = '' OR topic = $2)
  AND ($3 = '' OR aggregate_id = $3)
  AND position > $4
ORDER BY position
LIMIT $5

-- name: list_archive
-- $1 topic, $2 aggregate, empty for any; behind position $3, $4 at most.
SELECT
    position, id, aggregate_type, aggregate_id, topic, octet_length(payload) AS bytes, created_at, published_at,
    attempts, last_error, retry_at
FROM outbox_archive
WHERE ($1 = '' OR topic = $1)
  AND ($2 = '' OR aggregate_id = $2)
  AND position > $3
ORDER BY position
LIMIT $4

-- name: show
-- The archive has no index by id: it is looked at when the outbox has none.
SELECT * FROM outbox WHERE id = $1

-- name: show_archived
SELECT * FROM outbox_archive WHERE id = $1 ORDER BY published_at DESC LIMIT 1

-- name: rows
-- Those of ids, without their payloads.
SELECT id, topic, aggregate_type, aggregate_id, created_at, published_at, attempts, last_error, retry_at
FROM outbox
WHERE id = ANY ($1::text[])

-- name: rows_archived
-- Those of ids that were published about a time each: the archive has an index by that, and none by id.
SELECT found.*
FROM unnest($1::text[], $2::timestamptz[]) AS wanted (id, at)
CROSS JOIN LATERAL (
    SELECT id, topic, aggregate_type, aggregate_id, created_at, published_at, attempts, last_error, retry_at
    FROM outbox_archive
    WHERE outbox_archive.id = wanted.id
      AND published_at BETWEEN wanted.at - interval '1 minute' AND wanted.at + interval '1 minute'
    ORDER BY published_at DESC
    LIMIT 1
) AS found

-- name: again
-- Which rows are to be published again: those of ids, or all that a broker has refused.
SELECT position, id, topic, aggregate_id, published_at, attempts
FROM outbox
WHERE CASE WHEN $2 THEN published_at IS NULL AND retry_at IS NOT NULL ELSE id = ANY ($1::text[]) END
ORDER BY position

-- name: again_archived
-- The newest of each id; those of ids that the outbox has are not asked for.
SELECT position, id, topic, aggregate_id, published_at, attempts
FROM (
    SELECT DISTINCT ON (id) *
    FROM outbox_archive
    WHERE id = ANY ($1::text[])
    ORDER BY id, published_at DESC
) AS newest
ORDER BY position

-- name: republish
-- Rows that wait: at once.
UPDATE outbox SET retry_at = NULL, attempts = 0
WHERE position = ANY ($1::bigint[]) AND published_at IS NULL

-- name: republish_published
-- As new rows, behind those that wait: change data capture passes on what is inserted, and nothing else.
WITH gone AS (
    DELETE FROM outbox WHERE position = ANY ($1::bigint[]) AND published_at IS NOT NULL
    RETURNING *
)
INSERT INTO outbox (
    id, aggregate_type, aggregate_id, event_type, topic, payload, ce_specversion, ce_source, ce_time, ce_correlationid,
    schema_fingerprint, ce_causationid, ce_expirytime, ce_within, content_type, traceparent, ce_dataref,
    claim_sha256, claim_size, created_at
)
SELECT
    id, aggregate_type, aggregate_id, event_type, topic, payload, ce_specversion, ce_source, ce_time, ce_correlationid,
    schema_fingerprint, ce_causationid, ce_expirytime, ce_within, content_type, traceparent, ce_dataref,
    claim_sha256, claim_size, clock_timestamp()
FROM gone
ORDER BY position

-- name: republish_archived
WITH gone AS (
    DELETE FROM outbox_archive
    USING (
        SELECT DISTINCT ON (id) published_at, position
        FROM outbox_archive
        WHERE id = ANY ($1::text[])
        ORDER BY id, published_at DESC
    ) AS newest
    WHERE outbox_archive.published_at = newest.published_at AND outbox_archive.position = newest.position
    RETURNING outbox_archive.*
)
INSERT INTO outbox (
    id, aggregate_type, aggregate_id, event_type, topic, payload, ce_specversion, ce_source, ce_time, ce_correlationid,
    schema_fingerprint, ce_causationid, ce_expirytime, ce_within, content_type, traceparent, ce_dataref,
    claim_sha256, claim_size, created_at
)
SELECT
    id, aggregate_type, aggregate_id, event_type, topic, payload, ce_specversion, ce_source, ce_time, ce_correlationid,
    schema_fingerprint, ce_causationid, ce_expirytime, ce_within, content_type, traceparent, ce_dataref,
    claim_sha256, claim_size, clock_timestamp()
FROM gone
ORDER BY position

-- name: wake
SELECT pg_notify('outbox', '')

-- name: cleanup
-- One step: of the $2 rows behind position $1 those go that were published over $3 seconds ago.
WITH looked AS (
    SELECT position, created_at, published_at
    FROM outbox
    WHERE position > $1
    ORDER BY position
    LIMIT $2
),
gone AS (
    DELETE FROM outbox
    USING looked
    WHERE outbox.position = looked.position
      AND outbox.published_at < now() - $3::float8 * interval '1 second'
    RETURNING outbox.position
)
SELECT
    (SELECT count(*) FROM gone) AS removed,
    max(position) AS last,
    -- Positions rise with time: behind rows that are all too young there are no old ones.
    coalesce(bool_and(created_at > now() - $3::float8 * interval '1 second'), true) AS is_young
FROM looked

-- name: removable
SELECT count(*) FROM outbox WHERE published_at < now() - $1::float8 * interval '1 second'

-- name: references
-- The objects that rows refer to, whether they wait or were published.
SELECT ce_dataref FROM outbox WHERE ce_dataref IS NOT NULL
UNION ALL
SELECT ce_dataref FROM outbox_archive WHERE ce_dataref IS NOT NULL

-- name: of_aggregate
-- How many rows there are of an aggregate id, and the objects that they refer to.
SELECT count(*) AS rows, coalesce(array_agg(ce_dataref) FILTER (WHERE ce_dataref IS NOT NULL), '{}') AS objects
FROM (
    SELECT ce_dataref FROM outbox WHERE aggregate_id = $1
    UNION ALL
    SELECT ce_dataref FROM outbox_archive WHERE aggregate_id = $1
) AS found

-- name: erase
DELETE FROM outbox WHERE aggregate_id = $1

-- name: erase_archived
DELETE FROM outbox_archive WHERE aggregate_id = $1
