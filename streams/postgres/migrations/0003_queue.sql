-- Queues of work. A job is inserted and deleted, and not changed in between unless something goes wrong: what is
-- under way stands in queue_lease, one row for each batch.
CREATE TABLE queue_job (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue       text        COLLATE "C" NOT NULL,
    -- ready: it may be taken, or is under way. waiting: until `due`. held: behind an earlier job of its key.
    -- failed: it was not processed, all tries are spent; it stays until somebody retries or discards it.
    state       text        COLLATE "C" NOT NULL CHECK (state IN ('ready', 'waiting', 'held', 'failed')),
    topic       text        NOT NULL,
    partition   int,        -- of the topic, where the sender knows it
    key         text        COLLATE "C",  -- jobs of one key are done in order; null: no order
    kind        text        COLLATE "C" NOT NULL CHECK (kind IN ('event', 'command', 'reply')),
    action      text        NOT NULL,     -- which handler of the queue is to do it
    payload     bytea       NOT NULL,
    headers     json        NOT NULL,     -- [[name, value], ...], each byte of a value as a character
    saga_id     text,       -- of commands and replies
    reply_topic text,       -- of commands
    status_code text        CHECK (status_code IN ('success', 'error', 'system error')),  -- of replies
    retry       int         NOT NULL DEFAULT 0,  -- tries that have failed
    alone       boolean     NOT NULL DEFAULT false,  -- a worker went away while it had it: no others beside it
    aside       boolean     NOT NULL DEFAULT false,  -- it was not ready once: others may be held behind it
    error       text,       -- of the last try
    due         timestamptz NOT NULL DEFAULT now(),
    created     timestamptz NOT NULL DEFAULT now(),
    updated     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX queue_job_ready ON queue_job (queue, id) WHERE state = 'ready';
CREATE INDEX queue_job_waiting ON queue_job (queue, due) WHERE state = 'waiting';
CREATE INDEX queue_job_aside ON queue_job (queue, state, id) WHERE state <> 'ready';
CREATE INDEX queue_job_blocking ON queue_job (queue, key, id) WHERE state <> 'ready' AND key IS NOT NULL;

-- Jobs that a worker has. While the row is there and `until` is not over, nobody else takes them, nor others of
-- their keys. Finishing deletes it, in the transaction of the handler: whoever does not find it any more was too
-- late, and rolls back.
CREATE TABLE queue_lease (
    id     bigint      PRIMARY KEY,  -- chosen by the worker, at random
    queue  text        COLLATE "C" NOT NULL,
    worker text        NOT NULL,
    jobs   bigint[]    NOT NULL,
    keys   text[]      NOT NULL,
    until  timestamptz NOT NULL
);
CREATE INDEX queue_lease_queue ON queue_lease (queue);

-- Whether a worker of the queue sleeps, and wants a notification.
CREATE TABLE queue_wake (
    queue  text    COLLATE "C" PRIMARY KEY,
    asleep boolean NOT NULL
) WITH (fillfactor = 50);

-- What is to be sent to the broker, and what came from it, as two queues that are usual.
CREATE VIEW producer_queue AS
    SELECT id, topic, payload, action, retry, created, updated, kind, key, state
    FROM queue_job WHERE queue = 'producer_queue';
CREATE VIEW consumer_queue AS
    SELECT id, topic, partition, payload, retry, created, updated, kind, key, state
    FROM queue_job WHERE queue = 'consumer_queue';

-- Those who decide what may be taken do it one after the other, for milliseconds: each sees what the one before
-- has committed, which the order by key depends on.
CREATE FUNCTION queue_lock(of_queue text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(1903520117, hashtext(of_queue))
$$;

-- What workers had that are gone is ready again, as one try more; each of it by itself from now on, so that one
-- job that ends its worker does not take others along.
CREATE FUNCTION queue_expire(of_queue text, tries int) RETURNS void LANGUAGE sql AS $$
    WITH over AS (
        SELECT id FROM queue_lease WHERE queue = of_queue AND until < clock_timestamp()
        FOR UPDATE SKIP LOCKED  -- one that is being finished is not over
    ), gone AS (
        DELETE FROM queue_lease WHERE id IN (SELECT id FROM over) RETURNING jobs, worker
    ), lost AS (
        SELECT unnest(jobs) AS id, worker FROM gone
    )
    UPDATE queue_job SET
        state = CASE WHEN retry + 1 >= tries THEN 'failed' ELSE 'ready' END,
        retry = retry + 1, alone = true, aside = true, updated = clock_timestamp(),
        error = 'worker ' || lost.worker || ' went away, or was silent for longer than its lease'
    FROM lost WHERE queue_job.id = lost.id
$$;

-- Take up to `most` jobs for a time. Jobs of a key come in their order, several of them in one batch, and never
-- while another batch has jobs of the key. Looks at `reach` ready jobs at most.
CREATE FUNCTION queue_take(
    of_queue text, by_worker text, as_lease bigint, most int, lasting interval, tries int, reach int
) RETURNS SETOF queue_job LANGUAGE plpgsql AS $$
DECLARE
    chosen  bigint[];
    blocked int;
BEGIN
    -- Should the server lose this, nobody has the jobs, and they are taken again.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM queue_lock(of_queue);
    IF EXISTS (SELECT FROM queue_lease WHERE queue = of_queue AND until < clock_timestamp()) THEN
        PERFORM queue_expire(of_queue, tries);
    END IF;
    UPDATE queue_job SET state = 'ready' WHERE id IN (
        SELECT id FROM queue_job
        WHERE queue = of_queue AND state = 'waiting' AND due <= clock_timestamp() ORDER BY due LIMIT most
    );
    LOOP
        SELECT array_agg(free.id ORDER BY free.id) INTO chosen FROM (
            SELECT front.id, row_number() OVER (ORDER BY front.id) AS place,
                   count(*) FILTER (WHERE front.alone) OVER (ORDER BY front.id) AS alone
            FROM (
                SELECT id, key, alone FROM queue_job
                WHERE queue = of_queue AND state = 'ready' ORDER BY id LIMIT reach
            ) AS front
            WHERE NOT EXISTS (
                SELECT FROM queue_lease, unnest(jobs) AS job WHERE queue = of_queue AND job = front.id
            ) AND NOT EXISTS (
                SELECT FROM queue_lease, unnest(keys) AS busy WHERE queue = of_queue AND busy = front.key
            )
            ORDER BY front.id LIMIT most
        ) AS free
        WHERE free.alone = 0 OR (free.place = 1 AND free.alone = 1);
        EXIT WHEN chosen IS NULL;
        -- Those behind one that waits or has failed are put aside, so that nobody looks at them again until then.
        UPDATE queue_job AS later SET state = 'held', aside = true
        WHERE later.id = ANY (chosen) AND EXISTS (
            SELECT FROM queue_job AS earlier
            WHERE earlier.queue = of_queue AND earlier.key = later.key AND earlier.state <> 'ready'
              AND earlier.id < later.id
        );
        GET DIAGNOSTICS blocked = ROW_COUNT;
        EXIT WHEN blocked = 0;
    END LOOP;
    IF chosen IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO queue_lease (id, queue, worker, jobs, keys, until)
    SELECT as_lease, of_queue, by_worker, chosen, coalesce(array_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL), '{}'),
           clock_timestamp() + lasting
    FROM queue_job WHERE id = ANY (chosen);
    RETURN QUERY SELECT * FROM queue_job WHERE id = ANY (chosen) ORDER BY id;
END
$$;

-- Those of these keys that are held may be looked at again: what was before them is over.
CREATE FUNCTION queue_release(of_queue text, of_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queue_lock(of_queue);
    UPDATE queue_job SET state = 'ready' WHERE queue = of_queue AND key = ANY (of_keys) AND state = 'held';
END
$$;

-- Take jobs out of a lease; false when it is not there any more, or never had them.
CREATE FUNCTION queue_unlease(of_lease bigint, those bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM queue_lease WHERE id = of_lease AND jobs <@ those;
    IF NOT FOUND THEN
        UPDATE queue_lease SET jobs = ARRAY(SELECT unnest(jobs) EXCEPT SELECT unnest(those))
        WHERE id = of_lease AND jobs @> those;
    END IF;
    RETURN FOUND;
END
$$;

-- Jobs are done: they go, in the transaction of what their handler wrote. False: the lease was over.
CREATE FUNCTION queue_finish(of_lease bigint, done bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    of_queue text;
    freed    text[];
BEGIN
    IF NOT queue_unlease(of_lease, done) THEN
        RETURN false;
    END IF;
    WITH gone AS (DELETE FROM queue_job WHERE id = ANY (done) RETURNING queue, key, aside)
    SELECT min(queue), array_agg(key) FILTER (WHERE aside AND key IS NOT NULL) INTO of_queue, freed FROM gone;
    IF freed IS NOT NULL THEN
        PERFORM queue_release(of_queue, freed);
    END IF;
    RETURN true;
END
$$;

-- A try has failed. The job waits, or, without a `pause` or a try left, has failed for good. False: the lease
-- was over, and somebody else has counted.
CREATE FUNCTION queue_fail(of_lease bigint, job bigint, what text, tries int, pause interval)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT queue_unlease(of_lease, ARRAY[job]) THEN
        RETURN false;
    END IF;
    UPDATE queue_job SET
        state = CASE WHEN pause IS NULL OR retry + 1 >= tries THEN 'failed' ELSE 'waiting' END,
        retry = retry + 1, aside = true, error = what, updated = clock_timestamp(),
        due = clock_timestamp() + coalesce(pause, interval '0')
    WHERE id = job;
    RETURN true;
END
$$;

-- An operator has failed jobs tried again, from the first try on; returns which.
CREATE FUNCTION queue_retry(of_queue text, those bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    again bigint[];
BEGIN
    PERFORM queue_lock(of_queue);
    WITH changed AS (
        UPDATE queue_job SET state = 'ready', retry = 0, updated = clock_timestamp()
        WHERE queue = of_queue AND id = ANY (those) AND state IN ('failed', 'waiting') RETURNING id
    )
    SELECT array_agg(id ORDER BY id) INTO again FROM changed;
    RETURN coalesce(again, '{}');
END
$$;

-- An operator gives jobs up; returns which: not those that a worker has.
CREATE FUNCTION queue_discard(of_queue text, those bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    gone  bigint[];
    freed text[];
BEGIN
    PERFORM queue_lock(of_queue);
    WITH deleted AS (
        DELETE FROM queue_job
        WHERE queue = of_queue AND id = ANY (those) AND NOT EXISTS (
            SELECT FROM queue_lease, unnest(jobs) AS job
            WHERE queue_lease.queue = of_queue AND job = queue_job.id
        )
        RETURNING id, key
    )
    SELECT array_agg(id ORDER BY id), array_agg(key) FILTER (WHERE key IS NOT NULL) INTO gone, freed
    FROM deleted;
    IF freed IS NOT NULL THEN
        PERFORM queue_release(of_queue, freed);
    END IF;
    RETURN coalesce(gone, '{}');
END
$$;

-- The transactional inbox: messages that are stored first, and handled later by jobs of the queue of its name.
CREATE TABLE transactional_inbox (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    inbox        text        COLLATE "C" NOT NULL,
    message_id   text        COLLATE "C" NOT NULL,
    payload      bytea       NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz,  -- written in the transaction of its handler
    UNIQUE (inbox, message_id)
);
CREATE INDEX transactional_inbox_processed ON transactional_inbox (inbox, processed_at) WHERE processed_at IS NOT NULL;
