-- Change data capture of the outbox, and who relays it.

-- One row at most. The outbox belongs to the first kind of relay that asks, until an operator hands it over:
-- two kinds at once would publish each row twice, and cross each other within an aggregate.
CREATE TABLE outbox_owner (
    the_only boolean     PRIMARY KEY DEFAULT true CHECK (the_only),
    relay    text        NOT NULL CHECK (relay IN ('poll', 'cdc')),
    since    timestamptz NOT NULL DEFAULT now(),
    -- How often change data capture has begun with the table: places in the log of one slot mean nothing to the next.
    beginnings int       NOT NULL DEFAULT 0
);

-- What the connector writes from time to time, so that its slot advances while others fill the log. One row.
CREATE TABLE cdc_heartbeat (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    beat_at timestamptz NOT NULL DEFAULT now()
);
