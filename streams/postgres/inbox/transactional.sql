-- name: receive
INSERT INTO transactional_inbox (inbox, message_id, payload) VALUES ($1, $2, $3)
ON CONFLICT (inbox, message_id) DO NOTHING
RETURNING id

-- name: process
UPDATE transactional_inbox SET processed_at = clock_timestamp()
WHERE id = $1 AND processed_at IS NULL
RETURNING id, message_id, payload, received_at

-- name: clean_up
WITH gone AS (
    DELETE FROM transactional_inbox WHERE id IN (
        SELECT id FROM transactional_inbox WHERE inbox = $1 AND processed_at < $2
        ORDER BY processed_at LIMIT $3 FOR UPDATE SKIP LOCKED
    )
    RETURNING id
)
SELECT count(*) FROM gone

-- name: inboxes
-- The names that there are, each found by one look into the index of ids.
WITH RECURSIVE found AS (
    (SELECT inbox FROM transactional_inbox ORDER BY inbox LIMIT 1)
    UNION ALL
    SELECT (SELECT inbox FROM transactional_inbox AS more WHERE more.inbox > found.inbox ORDER BY inbox LIMIT 1)
    FROM found WHERE found.inbox IS NOT NULL
)
SELECT inbox FROM found WHERE inbox IS NOT NULL
