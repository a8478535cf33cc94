-- What each consumer has handled. A row is written in the transaction of what its handler changed.
CREATE TABLE consumer_inbox (
    event_id               text        COLLATE "C" NOT NULL,
    consumer_name          text        COLLATE "C" NOT NULL,
    source_topic           text        NOT NULL,
    event_type             text        NOT NULL,
    payload                bytea,      -- null: not kept
    consumed_at            timestamptz NOT NULL DEFAULT now(),
    processing_duration_ms double precision,  -- written behind the handler, in the same transaction
    PRIMARY KEY (consumer_name, event_id)
) WITH (fillfactor = 90);  -- room for that second version of a row on its own page, so that no index changes

-- For cleanup: the oldest of a consumer first.
CREATE INDEX consumer_inbox_consumed ON consumer_inbox (consumer_name, consumed_at);
