-- name: enqueue
-- A worker is told of it if one sleeps: whoever clears its wish sends the one notification, others who find the
-- row locked leave it to them.
WITH job AS (
    INSERT INTO queue_job (queue, state, topic, partition, key, kind, action, payload, headers,
                           saga_id, reply_topic, status_code, due, aside)
    SELECT $1, CASE WHEN delay > 0 THEN 'waiting' ELSE 'ready' END, topic, partition, key, kind, action, payload,
           headers, saga_id, reply_topic, status_code, now() + delay * interval '1 second', delay > 0
    FROM unnest($2::text[], $3::int[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::json[], $9::text[],
                $10::text[], $11::text[], $12::float8[]) WITH ORDINALITY
         AS new (topic, partition, key, kind, action, payload, headers, saga_id, reply_topic, status_code, delay,
                 place)
    ORDER BY place
    RETURNING id
), sleeper AS (
    SELECT queue FROM queue_wake WHERE queue = $1 AND asleep FOR UPDATE SKIP LOCKED
), woken AS (
    UPDATE queue_wake SET asleep = false FROM sleeper WHERE queue_wake.queue = sleeper.queue
    RETURNING pg_notify('steadfaust_queue', queue_wake.queue)
)
SELECT id FROM job ORDER BY id

-- name: take
SELECT id, topic, partition, key, kind, action, payload, headers, retry, created, updated
FROM queue_take($1, $2, $3, $4, $5, $6, $7)

-- name: sleep
-- A wish that somebody is about to answer is left alone.
WITH awake AS (
    SELECT queue FROM queue_wake WHERE queue = $1 AND NOT asleep FOR UPDATE SKIP LOCKED
)
UPDATE queue_wake SET asleep = true FROM awake WHERE queue_wake.queue = awake.queue

-- name: know
INSERT INTO queue_wake (queue, asleep) VALUES ($1, true) ON CONFLICT (queue) DO NOTHING

-- name: finish
SELECT queue_finish($1, $2)

-- name: fail
SELECT queue_fail($1, $2, $3, $4, $5)

-- name: postpone
-- The job waits, and no try is counted. Nothing: the lease was over.
WITH mine AS MATERIALIZED (SELECT queue_unlease($1, ARRAY[$2::bigint]) AS is_mine)
UPDATE queue_job SET
    state = 'waiting', aside = true, error = $3, updated = clock_timestamp(), due = clock_timestamp() + $4
FROM mine WHERE id = $2 AND is_mine RETURNING true

-- name: give_back
DELETE FROM queue_lease WHERE id = ANY($1::bigint[])

-- name: renew
UPDATE queue_lease SET until = clock_timestamp() + $2 WHERE id = ANY($1::bigint[])

-- name: nearer
-- Jobs whose pause was counted from a time that is still to come: the database's clock was ahead, such as that of a
-- former primary. It is counted from now.
-- A lease does not say when it was taken: of a worker that has gone it ends within $2, many times the usual.
WITH leases AS (
    UPDATE queue_lease SET until = clock_timestamp() + $2
    WHERE id IN (
        SELECT id FROM queue_lease WHERE queue = $1 AND until > clock_timestamp() + $2 FOR UPDATE SKIP LOCKED
    )
)
UPDATE queue_job SET due = clock_timestamp() + (due - updated), updated = clock_timestamp()
WHERE id IN (
    SELECT id FROM queue_job
    WHERE queue = $1 AND state = 'waiting' AND due > clock_timestamp()
      AND updated > clock_timestamp() + interval '1 second'
    FOR UPDATE SKIP LOCKED
)

-- name: queues
-- Jobs by queue and state; a ready one that a worker has is under way.
WITH busy AS (SELECT unnest(jobs) AS id FROM queue_lease)
SELECT queue, CASE WHEN busy.id IS NULL THEN state ELSE 'under way' END AS state,
       count(*) AS jobs, min(created) AS oldest
FROM queue_job LEFT JOIN busy USING (id)
WHERE $1::text IS NULL OR queue = $1
GROUP BY 1, 2 ORDER BY 1, 2

-- name: standings
-- Asked every few seconds: names are found by one look into an index each, and no count goes beyond 100,000.
WITH RECURSIVE ready AS (
    (SELECT queue FROM queue_job WHERE state = 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM queue_job WHERE state = 'ready' AND queue > ready.queue ORDER BY queue LIMIT 1)
    FROM ready WHERE ready.queue IS NOT NULL
), aside AS (
    (SELECT queue FROM queue_job WHERE state <> 'ready' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM queue_job WHERE state <> 'ready' AND queue > aside.queue ORDER BY queue LIMIT 1)
    FROM aside WHERE aside.queue IS NOT NULL
), names AS (
    SELECT queue FROM ready UNION SELECT queue FROM aside UNION SELECT queue FROM queue_wake
)
SELECT
    queue,
    (SELECT count(*) FROM (SELECT FROM queue_job WHERE queue = names.queue AND state = 'ready' LIMIT 100000) AS j)
        AS ready,
    (SELECT count(*) FROM (SELECT FROM queue_job WHERE queue = names.queue AND state = 'waiting' LIMIT 100000) AS j)
        AS waiting,
    (
        SELECT count(*)
        FROM (SELECT FROM queue_job WHERE queue = names.queue AND state <> 'ready' AND state = 'held' LIMIT 100000) AS j
    ) AS held,
    (
        SELECT count(*)
        FROM (SELECT FROM queue_job WHERE queue = names.queue AND state <> 'ready' AND state = 'failed' LIMIT 100000)
            AS j
    ) AS failed,
    (SELECT coalesce(sum(cardinality(jobs)), 0)::bigint FROM queue_lease WHERE queue_lease.queue = names.queue)
        AS under_way,
    -- Also one whose pause is over and whom nobody has taken; of those that are ready the first hundred.
    greatest(0, coalesce(extract(epoch FROM clock_timestamp() - least(
        (
            SELECT min(greatest(due, updated))
            FROM (
                SELECT due, updated
                FROM queue_job
                WHERE queue = names.queue AND state = 'ready' AND NOT EXISTS (
                    SELECT FROM queue_lease, unnest(jobs) AS job
                    WHERE queue_lease.queue = names.queue AND job = queue_job.id
                )
                ORDER BY id
                LIMIT 100
            ) AS front
        ),
        (SELECT min(due) FROM queue_job WHERE queue = names.queue AND state = 'waiting' AND due <= clock_timestamp())
    )), 0))::float8 AS oldest_ready
FROM names
WHERE queue IS NOT NULL
ORDER BY queue

-- name: list
SELECT queue_job.*, queue_lease.worker, queue_lease.until
FROM queue_job LEFT JOIN queue_lease ON queue_lease.queue = queue_job.queue AND queue_job.id = ANY (jobs)
WHERE queue_job.queue = $1 AND ($2::text IS NULL OR state = $2) AND ($3::text IS NULL OR key = $3)
  AND queue_job.id > $4
ORDER BY queue_job.id LIMIT $5

-- name: show
SELECT queue_job.*, queue_lease.worker, queue_lease.until
FROM queue_job LEFT JOIN queue_lease ON queue_lease.queue = queue_job.queue AND queue_job.id = ANY (jobs)
WHERE queue_job.id = $1

-- name: retry
SELECT queue_retry($1, $2)

-- name: discard
SELECT queue_discard($1, $2)

-- name: wake
UPDATE queue_wake SET asleep = false WHERE queue = $1 AND asleep RETURNING pg_notify('steadfaust_queue', queue)
