-- The two usual queues under the names that others know: columns, plain INSERTs, and the channels that they listen to.
CREATE OR REPLACE VIEW producer_queue AS
    SELECT id, topic, payload, action, retry, created, updated, kind, key, state,
           payload AS data, created AS created_at, updated AS updated_at
    FROM queue_job WHERE queue = 'producer_queue';
CREATE OR REPLACE VIEW consumer_queue AS
    SELECT id, topic, partition, payload, retry, created, updated, kind, key, state,
           payload AS data, created AS created_at, updated AS updated_at, action
    FROM queue_job WHERE queue = 'consumer_queue';

-- Rows of these two queues notify the channel of their name, however they come. Rows of other queues do not: a
-- notification takes a lock on the whole database while its transaction commits.
CREATE FUNCTION queue_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(NEW.queue, '');
    RETURN NULL;
END
$$;
CREATE TRIGGER queue_notify AFTER INSERT ON queue_job FOR EACH ROW
    WHEN (NEW.queue IN ('producer_queue', 'consumer_queue'))
    EXECUTE FUNCTION queue_notify();

-- A plain INSERT is a job as `Queue.enqueue` makes it: an event with an id of its own, of no key unless it says one.
CREATE FUNCTION queue_insert() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    given      jsonb := to_jsonb(NEW);
    message_id text  := gen_random_uuid()::text;
    -- Headers are kept with a character for each byte.
    type_bytes text  := convert_from(convert_to(NEW.topic, 'UTF8'), 'LATIN1');
BEGIN
    IF NEW.topic IS NULL OR NEW.topic = '' THEN
        RAISE EXCEPTION '%: a job has a topic', TG_TABLE_NAME USING ERRCODE = 'not_null_violation';
    END IF;
    NEW.payload := coalesce(NEW.payload, NEW.data);
    NEW.data := NEW.payload;
    NEW.retry := coalesce(NEW.retry, 0);
    NEW.created := coalesce(NEW.created, NEW.created_at, now());
    NEW.created_at := NEW.created;
    NEW.updated := coalesce(NEW.updated, NEW.updated_at, now());
    NEW.updated_at := NEW.updated;
    NEW.kind := coalesce(NEW.kind, 'event');
    NEW.action := coalesce(NEW.action, 'handle');
    NEW.state := 'ready';
    INSERT INTO queue_job (queue, state, topic, partition, key, kind, action, payload, headers, retry, created, updated)
    VALUES (
        TG_TABLE_NAME, NEW.state, NEW.topic, (given ->> 'partition')::int, NEW.key, NEW.kind, NEW.action, NEW.payload,
        json_build_array(
            json_build_array('ce_specversion', '1.0'),
            json_build_array('ce_id', message_id),
            json_build_array('ce_type', type_bytes),
            json_build_array('ce_source', TG_TABLE_NAME),
            json_build_array('ce_time', to_char(NEW.created AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')),
            json_build_array('ce_correlationid', message_id)
        ),
        NEW.retry, NEW.created, NEW.updated
    )
    RETURNING id INTO NEW.id;
    -- A worker that sleeps is told, as `Queue.enqueue` tells it.
    WITH sleeper AS (
        SELECT queue FROM queue_wake WHERE queue = TG_TABLE_NAME AND asleep FOR UPDATE SKIP LOCKED
    )
    UPDATE queue_wake SET asleep = false FROM sleeper WHERE queue_wake.queue = sleeper.queue;
    IF FOUND THEN
        PERFORM pg_notify('steadfaust_queue', TG_TABLE_NAME);
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER queue_insert INSTEAD OF INSERT ON producer_queue FOR EACH ROW EXECUTE FUNCTION queue_insert();
CREATE TRIGGER queue_insert INSTEAD OF INSERT ON consumer_queue FOR EACH ROW EXECUTE FUNCTION queue_insert();
