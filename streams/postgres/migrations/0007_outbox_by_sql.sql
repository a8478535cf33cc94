-- Publishing by SQL alone, for services that are not written in Python.

-- What a plain INSERT may leave out, where the database knows it. Not the fingerprint: only JSON has one that is known.
ALTER TABLE outbox
    ALTER COLUMN id SET DEFAULT gen_random_uuid()::text,
    ALTER COLUMN ce_source SET DEFAULT current_database()::text,
    ALTER COLUMN ce_time SET DEFAULT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
    ALTER COLUMN created_at SET DEFAULT clock_timestamp();

-- Fill in what depends on other columns, and refuse what no broker or no reader would take. It runs for rows that leave
-- something out; the library's own leave out nothing.
CREATE FUNCTION outbox_complete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    too_long text;
    bytes    int;
BEGIN
    IF NEW.id = '' OR NEW.aggregate_id = '' THEN
        RAISE EXCEPTION 'outbox: id and aggregate_id are not to be empty' USING
            ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave id out for a new one. The aggregate_id is the key of the message.';
    END IF;
    SELECT name INTO too_long FROM (VALUES
        ('id', NEW.id), ('aggregate_id', NEW.aggregate_id), ('event_type', NEW.event_type),
        ('ce_source', NEW.ce_source), ('ce_correlationid', NEW.ce_correlationid),
        ('ce_causationid', NEW.ce_causationid), ('traceparent', NEW.traceparent)
    ) AS given (name, value) WHERE octet_length(value) > 1024 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'outbox: % has more than 1024 bytes', too_long USING
            ERRCODE = 'string_data_right_truncation', HINT = 'Readers refuse a longer one: give a shorter one.';
    END IF;
    NEW.ce_correlationid := coalesce(NEW.ce_correlationid, NEW.id);
    IF NEW.schema_fingerprint IS NULL AND NEW.payload IS NOT NULL THEN
        BEGIN
            PERFORM convert_from(NEW.payload, 'UTF8')::json;
        EXCEPTION WHEN OTHERS THEN
            RAISE EXCEPTION 'outbox: the payload of % is no JSON: %', NEW.id, SQLERRM USING
                ERRCODE = 'invalid_text_representation',
                HINT = 'Give JSON to outbox_publish() or as convert_to(..., ''UTF8''); for Avro, give its '
                    'schema_fingerprint. A backslash in a literal of bytes is not one of JSON.';
        END;
        NEW.schema_fingerprint := '0000000000000000';
    END IF;
    bytes := octet_length(NEW.payload) + octet_length(NEW.aggregate_id) * 2 + octet_length(NEW.id)
        + octet_length(NEW.ce_correlationid) + 4096;
    IF bytes > 1000000 THEN
        RAISE EXCEPTION 'outbox: % % makes a record of up to % bytes, 1000000 is the most', NEW.topic, NEW.id, bytes
            USING ERRCODE = 'program_limit_exceeded',
            HINT = 'Brokers refuse it, and it would hold back its aggregate: publish a reference to the payload.';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER outbox_complete BEFORE INSERT ON outbox FOR EACH ROW
    WHEN (NEW.schema_fingerprint IS NULL OR NEW.ce_correlationid IS NULL)
    EXECUTE FUNCTION outbox_complete();

-- Publish a message with the transaction; returns its id. It is JSON, for readers whose codec that is. The event_type
-- is the topic and the source the database's name, unless given.
CREATE FUNCTION outbox_publish(
    aggregate_type text, aggregate_id text, event_type text, topic text, payload jsonb,
    id text DEFAULT NULL, correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL,
    source text DEFAULT NULL, traceparent text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    new_id text := coalesce(outbox_publish.id, gen_random_uuid()::text);
BEGIN
    INSERT INTO outbox (
        id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_correlationid, ce_causationid,
        traceparent
    ) VALUES (
        new_id, outbox_publish.aggregate_type, outbox_publish.aggregate_id,
        coalesce(nullif(outbox_publish.event_type, ''), outbox_publish.topic), outbox_publish.topic,
        convert_to(outbox_publish.payload::text, 'UTF8'),
        coalesce(outbox_publish.source, current_database()::text), outbox_publish.correlation_id,
        outbox_publish.causation_id, outbox_publish.traceparent
    );
    RETURN new_id;
END
$$;

-- The outbox as others know it, with JSON for its payload: for those who insert a row rather than call a function.
CREATE VIEW outbox_events AS
    SELECT id, aggregate_type, aggregate_id, event_type, topic,
           CASE WHEN schema_fingerprint = '0000000000000000' AND ce_dataref IS NULL
                THEN convert_from(payload, 'UTF8')::json END AS payload,
           created_at, published_at
    FROM outbox;

CREATE FUNCTION outbox_events_insert() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.id := coalesce(NEW.id, gen_random_uuid()::text);
    NEW.created_at := coalesce(NEW.created_at, clock_timestamp());
    INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, created_at, published_at)
    VALUES (NEW.id, NEW.aggregate_type, NEW.aggregate_id, coalesce(nullif(NEW.event_type, ''), NEW.topic), NEW.topic,
            convert_to(NEW.payload::text, 'UTF8'), NEW.created_at, NEW.published_at);
    RETURN NEW;
END
$$;
CREATE TRIGGER outbox_events_insert INSTEAD OF INSERT ON outbox_events FOR EACH ROW
    EXECUTE FUNCTION outbox_events_insert();
