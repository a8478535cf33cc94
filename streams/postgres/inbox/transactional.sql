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
