-- Jobs that are due and behind one that waits or has failed keep no others from being taken.
--
-- A worker took as many due jobs as it does at once, and found nothing when all of them were behind an earlier job of
-- their key: it slept, though due jobs of other keys were there, and looked at so many more each time it woke.
CREATE OR REPLACE FUNCTION queue_take(
    of_queue text, by_worker text, as_lease bigint, most int, lasting interval, tries int, reach int
) RETURNS SETOF queue_job LANGUAGE plpgsql AS $$
DECLARE
    chosen  bigint[];
    blocked int;
    woken   int;
    looked  int := 0;
BEGIN
    -- Should the server lose this, nobody has the jobs, and they are taken again.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM queue_lock(of_queue);
    IF EXISTS (SELECT FROM queue_lease WHERE queue = of_queue AND until < clock_timestamp()) THEN
        PERFORM queue_expire(of_queue, tries);
    END IF;
    LOOP
        -- Those behind others are put aside at once where the first ones were all behind others: there may be many.
        UPDATE queue_job AS later SET state = CASE
            WHEN looked > 0 AND EXISTS (
                SELECT FROM queue_job AS earlier
                WHERE earlier.queue = of_queue AND earlier.key = later.key AND earlier.state <> 'ready'
                  AND earlier.id < later.id
            ) THEN 'held' ELSE 'ready' END
        WHERE id IN (
            SELECT id FROM queue_job
            WHERE queue = of_queue AND state = 'waiting' AND due <= clock_timestamp() ORDER BY due
            LIMIT CASE looked WHEN 0 THEN most ELSE reach END
        );
        GET DIAGNOSTICS woken = ROW_COUNT;
        looked := looked + woken;
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
        EXIT WHEN chosen IS NOT NULL OR woken = 0 OR looked >= reach;
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
