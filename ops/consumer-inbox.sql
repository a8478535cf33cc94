-- The consumer inbox for people at a psql prompt; `steadfaust inbox status` says the same.

-- Size: rows (estimated), bytes of the table and of its indexes.
SELECT c.reltuples::bigint AS rows_about,
       pg_size_pretty(pg_table_size('consumer_inbox')) AS table_size,
       pg_size_pretty(pg_indexes_size('consumer_inbox')) AS index_size
FROM pg_class AS c WHERE c.oid = 'consumer_inbox'::regclass;

-- Growth: rows of each consumer in each of the last 24 hours.
SELECT consumer_name, date_trunc('hour', consumed_at) AS hour, count(*) AS rows
FROM consumer_inbox WHERE consumed_at >= now() - interval '24 hours'
GROUP BY 1, 2 ORDER BY 1, 2;

-- The oldest row of each consumer: older than the retention, a cleanup is due.
SELECT consumer_name, min(consumed_at) AS oldest, now() - min(consumed_at) AS age
FROM consumer_inbox GROUP BY 1 ORDER BY 2;
