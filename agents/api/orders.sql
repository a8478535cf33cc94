-- name: place
-- Many requests at once, each by itself. A key is in flight elsewhere when its lock cannot be had: nobody waits
-- for anybody. `claimed`: it was not known, or had expired. `placed`: so was the order's id.
WITH asked AS MATERIALIZED (
    SELECT *, pg_try_advisory_xact_lock(hashtextextended(key, 0)) AS free
    FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::bigint[], $9::text[], $10::timestamptz[])
        AS request (key, digest, answer, order_id, way, customer, country, total_cents, lines, created_at)
), claimed AS (
    INSERT INTO idempotency_keys (key, digest, status, order_id, answer, expires_at)
    SELECT key, digest, 202, order_id, answer, now() + $11::interval FROM asked WHERE free
    ON CONFLICT (key) DO UPDATE
    SET digest = excluded.digest, status = excluded.status, order_id = excluded.order_id,
        answer = excluded.answer, expires_at = excluded.expires_at
    WHERE idempotency_keys.expires_at <= now()
    RETURNING key
), placed AS (
    INSERT INTO orders (id, way, customer, country, total_cents, lines, created_at, updated_at)
    SELECT order_id, way, customer, country, total_cents, lines::jsonb, created_at, created_at
    FROM asked JOIN claimed USING (key)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT free, claimed.key IS NOT NULL AS claimed, placed.id IS NOT NULL AS placed
FROM unnest($1::text[], $4::text[]) WITH ORDINALITY AS request (key, order_id, place)
JOIN asked USING (key)
LEFT JOIN claimed USING (key)
LEFT JOIN placed ON placed.id = request.order_id
ORDER BY place

-- name: refuse
-- The answer to a key whose order was there already.
UPDATE idempotency_keys SET status = $2, answer = $3 WHERE key = $1

-- name: answered
SELECT digest, status, order_id, answer FROM idempotency_keys WHERE key = $1

-- name: find
SELECT id, way, status, reason, cancellation, customer, country, total_cents, lines, created_at, updated_at
FROM orders WHERE id = $1

-- name: page
SELECT position, id, way, status, reason, cancellation, customer, country, total_cents, created_at, updated_at
FROM orders
WHERE position < $1
ORDER BY position DESC LIMIT $2

-- name: page_of_status
SELECT position, id, way, status, reason, cancellation, customer, country, total_cents, created_at, updated_at
FROM orders
WHERE status = $3 AND position < $1
ORDER BY position DESC LIMIT $2

-- name: call_off
-- Only the first one asks for it. An order that is settled meanwhile is left alone.
UPDATE orders SET cancellation = 'requested', updated_at = now()
WHERE id = $1 AND status = 'pending' AND cancellation = 'none'
RETURNING id

-- name: forget_keys
-- One batch of a cleanup, beside others.
DELETE FROM idempotency_keys WHERE key IN (
    SELECT key FROM idempotency_keys WHERE expires_at <= now()
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
)

-- name: settle
-- What orders says of orders, many at once, each once. One that is settled stays as it is. An order that did
-- not come by this API gets its row here.
INSERT INTO orders (id, way, status, reason, customer, country, total_cents, lines)
SELECT id, 'unknown', status, reason, customer, country, total_cents, lines::jsonb
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[])
    AS told (id, status, reason, customer, country, total_cents, lines)
ORDER BY id COLLATE "C"
ON CONFLICT (id) DO UPDATE
SET status = excluded.status, reason = excluded.reason, updated_at = now()
WHERE orders.status = 'pending'

-- name: refuse_cancellation
UPDATE orders SET cancellation = 'refused', updated_at = now()
WHERE id = ANY($1::text[]) AND cancellation = 'requested'
