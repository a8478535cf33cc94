-- name: mark
-- The insert decides who runs: whoever comes second waits for the end of the first one's transaction, and goes
-- on if that was rolled back. Sorted, so that batches with common ids wait for each other in one order.
INSERT INTO consumer_inbox (event_id, consumer_name, source_topic, event_type, payload)
SELECT event_id, $1, source_topic, event_type, payload
FROM unnest($2::text[], $3::text[], $4::text[], $5::bytea[]) AS new (event_id, source_topic, event_type, payload)
ORDER BY event_id COLLATE "C"
ON CONFLICT (consumer_name, event_id) DO NOTHING
RETURNING event_id

-- name: mark_one
INSERT INTO consumer_inbox (event_id, consumer_name, source_topic, event_type, payload)
VALUES ($2, $1, $3, $4, $5)
ON CONFLICT (consumer_name, event_id) DO NOTHING
RETURNING event_id

-- name: all_measured
UPDATE consumer_inbox SET processing_duration_ms = $3
WHERE consumer_name = $1 AND event_id = ANY($2::text[])

-- name: clean_up
-- One batch. It begins where the last one ended ($3), not at index entries of rows that are gone already.
WITH old AS (
    SELECT event_id FROM consumer_inbox
    WHERE consumer_name = $1 AND consumed_at < $2 AND consumed_at >= $3
    ORDER BY consumed_at LIMIT $4
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM consumer_inbox USING old
    WHERE consumer_inbox.consumer_name = $1 AND consumer_inbox.event_id = old.event_id
    RETURNING consumed_at
)
SELECT count(*) AS deleted, max(consumed_at) AS reached FROM gone

-- name: count_old
SELECT count(*) FROM consumer_inbox WHERE consumer_name = $1 AND consumed_at < $2

-- name: consumers
-- The names that there are, each found by one look into the primary key.
WITH RECURSIVE found AS (
    (SELECT consumer_name FROM consumer_inbox ORDER BY consumer_name LIMIT 1)
    UNION ALL
    SELECT (SELECT consumer_name FROM consumer_inbox AS more
            WHERE more.consumer_name > found.consumer_name ORDER BY consumer_name LIMIT 1)
    FROM found WHERE found.consumer_name IS NOT NULL
)
SELECT consumer_name FROM found WHERE consumer_name IS NOT NULL

-- name: standing
-- Rows and growth of one consumer: all of its rows are counted.
SELECT count(*) AS rows,
       count(*) FILTER (WHERE consumed_at >= now() - interval '1 hour') AS last_hour,
       count(*) FILTER (WHERE consumed_at >= now() - interval '1 day') AS last_day,
       min(consumed_at) AS oldest,
       avg(processing_duration_ms) AS mean_ms,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY processing_duration_ms) AS p99_ms
FROM consumer_inbox WHERE consumer_name = $1

-- name: size
SELECT pg_table_size('consumer_inbox') AS table_bytes, pg_indexes_size('consumer_inbox') AS index_bytes
