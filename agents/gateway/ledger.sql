-- Everything the gateway ever did, in the order in which it did it. Rows are only added.
CREATE TABLE IF NOT EXISTS operations (
    position         INTEGER PRIMARY KEY,
    operation        TEXT NOT NULL UNIQUE,   -- the caller's name for it: this is what makes it idempotent
    kind             TEXT NOT NULL CHECK (kind IN ('charge', 'refund')),
    status           TEXT NOT NULL CHECK (status IN ('captured', 'declined', 'refunded')),
    reason           TEXT NOT NULL DEFAULT '',
    cents            INTEGER NOT NULL CHECK (cents > 0),
    card             TEXT NOT NULL DEFAULT '',
    charge_operation TEXT UNIQUE,            -- of a refund; unique: a charge is given back once
    done_at          TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

-- How often an operation on a tok_unavailable_N card has been turned away.
CREATE TABLE IF NOT EXISTS outages (
    operation TEXT PRIMARY KEY,
    times     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
