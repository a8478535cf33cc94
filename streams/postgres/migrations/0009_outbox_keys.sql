-- The same for aggregates whose id is no text: of a column that is a uuid or a number. A literal is text, so each call
-- means one of the two.
CREATE FUNCTION outbox_publish(
    aggregate_type text, aggregate_id anyelement, event_type text, topic text, payload jsonb,
    id text DEFAULT NULL, correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL,
    source text DEFAULT NULL, traceparent text DEFAULT NULL
) RETURNS text LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT outbox_publish(
        aggregate_type, aggregate_id::text, event_type, topic, payload, id, correlation_id, causation_id, source,
        traceparent
    )
$$;
