-- name: fetch
-- The next rows of shards that are ours: $1 in the order of their turns, $2 rows of a shard and $3 in all at most,
-- up to about $4 bytes of payload.
--
-- A next attempt farther away than $5 seconds, the longest pause, was set by a database clock that was ahead, such as
-- that of a former primary: it does not hold its aggregate back.
--
-- Always from the first unpublished row of a shard, never from behind the last one that was read: a transaction that
-- began earlier and commits later has inserted its rows in front of those. Rows are left out while one of their
-- aggregate waits for its next attempt.
SELECT
    position, shard, id, aggregate_type, aggregate_id, event_type, topic, payload, ce_specversion, ce_source,
    ce_time, ce_correlationid, schema_fingerprint, ce_causationid, ce_expirytime, ce_within, content_type,
    traceparent, ce_dataref, claim_sha256, claim_size, attempts, extract(epoch FROM clock_timestamp() - created_at)::float8 AS age
FROM (
    SELECT
        found.*,
        sum(octet_length(payload)) OVER (ORDER BY turn, position) - octet_length(payload) AS bytes_before
    FROM (
        SELECT next.*, mine.turn
        FROM unnest($1::smallint[]) WITH ORDINALITY AS mine (shard, turn)
        CROSS JOIN LATERAL (
            SELECT *
            FROM outbox
            WHERE shard = mine.shard
              AND published_at IS NULL
              AND (aggregate_type, aggregate_id) NOT IN (
                  SELECT aggregate_type, aggregate_id
                  FROM outbox
                  WHERE published_at IS NULL AND retry_at > clock_timestamp()
                    AND retry_at <= clock_timestamp() + $5::float8 * interval '1 second'
              )
            ORDER BY position
            LIMIT $2
        ) AS next
        LIMIT $3
    ) AS found
) AS counted
WHERE bytes_before < $4
ORDER BY turn, position

-- name: mark
UPDATE outbox SET published_at = clock_timestamp(), retry_at = NULL
WHERE position = ANY ($1::bigint[]) AND published_at IS NULL

-- name: delete
-- One whose payload is in the object store is marked: until a reader has its message, nothing else says that the object
-- is needed.
WITH gone AS (
    DELETE FROM outbox WHERE position = ANY ($1::bigint[]) AND ce_dataref IS NULL
)
UPDATE outbox SET published_at = clock_timestamp(), retry_at = NULL
WHERE position = ANY ($1::bigint[]) AND ce_dataref IS NOT NULL AND published_at IS NULL

-- name: archive
WITH gone AS (
    DELETE FROM outbox WHERE position = ANY ($1::bigint[])
    RETURNING *
)
INSERT INTO outbox_archive (
    position, id, aggregate_type, aggregate_id, event_type, topic, payload, ce_specversion, ce_source, ce_time,
    ce_correlationid, schema_fingerprint, ce_causationid, ce_expirytime, ce_within, content_type, traceparent,
    ce_dataref, claim_sha256, claim_size, created_at, published_at, attempts, last_error
)
SELECT
    position, id, aggregate_type, aggregate_id, event_type, topic, payload, ce_specversion, ce_source, ce_time,
    ce_correlationid, schema_fingerprint, ce_causationid, ce_expirytime, ce_within, content_type, traceparent,
    ce_dataref, claim_sha256, claim_size, created_at, clock_timestamp(), attempts, last_error
FROM gone

-- name: lock
SELECT position FROM outbox
WHERE position = ANY ($1::bigint[]) AND published_at IS NULL
ORDER BY position
FOR UPDATE SKIP LOCKED

-- name: unmarked
SELECT position FROM outbox WHERE position = ANY ($1::bigint[]) AND published_at IS NULL

-- name: fail
-- A broker has refused it; the next attempt comes later each time: $3 seconds at first, $4 at most.
UPDATE outbox
SET attempts = attempts + 1,
    last_error = $2,
    retry_at = clock_timestamp() + least($4::float8, $3::float8 * 2 ^ least(attempts, 30)) * interval '1 second'
WHERE position = $1 AND published_at IS NULL

-- name: held
-- Who holds which lock of relays in this database.
SELECT classid::bigint AS class, objid::bigint AS number, pid
FROM pg_locks
WHERE locktype = 'advisory'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid IN ($1::bigint::oid, $2::bigint::oid)
  AND objsubid = 2
  AND granted

-- name: end_silent
-- End the sessions of relays that were frozen between the preparation of a statement and its execution. asyncpg sends
-- the two apart, and no timeout of the server counts in between: for it the session is neither idle nor in a statement.
-- A session that reads from its client while it is active waits for the rest of such a pair; $2 in seconds. Of sessions
-- of other roles the state is not visible, so they are left alone.
SELECT pid, pg_terminate_backend(pid) AS is_ended
FROM pg_stat_activity
WHERE state = 'active'
  AND wait_event = 'ClientRead'
  AND state_change < clock_timestamp() - $2::float8 * interval '1 second'
  AND pid IN (
      SELECT pid
      FROM pg_locks
      WHERE locktype = 'advisory'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = $1::bigint::oid
        AND objsubid = 2
        AND granted
  )

-- name: join
SELECT pg_backend_pid() AS pid, pg_try_advisory_lock($1::int, pg_backend_pid()) AS is_member

-- name: take
SELECT number FROM unnest($2::int[]) AS wanted (number) WHERE pg_try_advisory_lock($1::int, number)

-- name: release
SELECT pg_advisory_unlock($1::int, number) FROM unnest($2::int[]) AS given (number)

-- name: sleep
-- From here on the first who inserts sends a notification.
SELECT setval('outbox_wakeup', 1, false)

-- name: schemas
SELECT fingerprint, schema FROM outbox_schemas WHERE fingerprint = ANY ($1::text[])
