-- name: days
-- The partitions of the archive and where they end; the rest, which has no end, is not one of them.
SELECT child.relname AS name, bound.until::timestamptz AS until
FROM pg_inherits
JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
CROSS JOIN LATERAL (
    SELECT substring(pg_get_expr(child.relpartbound, child.oid) FROM 'TO \(''([^'']+)''\)') AS until
) AS bound
WHERE pg_inherits.inhparent = 'outbox_archive'::regclass AND bound.until IS NOT NULL
ORDER BY until

-- name: has_rest
-- Whether the rest has rows of a time: no partition can be made for it.
SELECT EXISTS (SELECT FROM outbox_archive_rest WHERE published_at >= $1 AND published_at < $2)

-- name: cleanup
-- One step, of what lies in no partition of a day.
WITH old AS (
    SELECT published_at, position
    FROM outbox_archive
    WHERE published_at < $1
      AND tableoid IN ('outbox_archive_before'::regclass, 'outbox_archive_rest'::regclass)
    ORDER BY published_at
    LIMIT $2
),
gone AS (
    DELETE FROM outbox_archive
    USING old
    WHERE outbox_archive.published_at = old.published_at AND outbox_archive.position = old.position
    RETURNING outbox_archive.position
)
SELECT count(*) FROM gone

-- name: removable
SELECT count(*)
FROM outbox_archive
WHERE published_at < CASE
    WHEN tableoid IN ('outbox_archive_before'::regclass, 'outbox_archive_rest'::regclass) THEN $1::timestamptz
    ELSE date_trunc('day', $1::timestamptz, 'UTC')
END
