-- What the orders API keeps: each order, and the answers to requests that may come again.

CREATE TABLE orders (
    position     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- pages go by it, newest first
    id           text        COLLATE "C" NOT NULL UNIQUE,
    way          text        NOT NULL CHECK (way IN ('placed', 'submitted', 'unknown')),
    status       text        NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'confirmed', 'cancelled')),
    reason       text        NOT NULL DEFAULT '',
    cancellation text        NOT NULL DEFAULT 'none' CHECK (cancellation IN ('none', 'requested', 'refused')),
    customer     text        NOT NULL,
    country      text        NOT NULL,
    total_cents  bigint      NOT NULL,
    lines        jsonb       NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 90);  -- each row is updated once or twice; without room all of its indexes would change

CREATE INDEX orders_by_status ON orders (status, position);

-- An answer is kept until it expires. A key in flight is an advisory lock, which ends with its transaction.
CREATE TABLE idempotency_keys (
    key        text        COLLATE "C" PRIMARY KEY,
    digest     bytea       NOT NULL,  -- of what was asked
    status     smallint    NOT NULL,
    order_id   text        NOT NULL,
    answer     bytea       NOT NULL,
    expires_at timestamptz NOT NULL
);

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);
