-- name: claim
INSERT INTO outbox_owner (relay) VALUES ($1) ON CONFLICT DO NOTHING

-- name: owner
SELECT relay, since FROM outbox_owner

-- name: hand_over
INSERT INTO outbox_owner (relay) VALUES ($1)
ON CONFLICT (the_only) DO UPDATE SET relay = excluded.relay, since = now()

-- name: slot
-- Slots belong to the server: the name says of which database this one is.
SELECT active, wal_status,
       pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint AS behind,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS retained,
       safe_wal_size AS room,
       to_jsonb(slots) ->> 'invalidation_reason' AS reason  -- a column from PostgreSQL 17 on
FROM pg_replication_slots AS slots WHERE slot_name = 'outbox_' || current_database()

-- name: begun
UPDATE outbox_owner SET beginnings = beginnings + 1

-- name: beginnings
SELECT beginnings FROM outbox_owner

-- name: lock
-- Of who begins again: one relay, while others wait for what comes of it.
SELECT pg_try_advisory_lock(hashtext('steadfaust-cdc-begin-again'))

-- name: unlock
SELECT pg_advisory_unlock(hashtext('steadfaust-cdc-begin-again'))

-- name: drop_slot
SELECT pg_drop_replication_slot(slot_name)
FROM pg_replication_slots WHERE slot_name = 'outbox_' || current_database()

-- name: end_predecessor
-- End the reader of a former task: a later connection of the same role has requested this slot, and has none. Nothing
-- happens where this role may not see or end the reader.
SELECT pg_terminate_backend(holder.pid)
FROM pg_replication_slots AS slot JOIN pg_stat_activity AS holder ON holder.pid = slot.active_pid
JOIN pg_roles AS theirs ON theirs.oid = holder.usesysid
JOIN pg_roles AS ours ON ours.rolname = current_user
WHERE slot.slot_name = 'outbox_' || current_database()
  AND theirs.rolsuper <= ours.rolsuper
  AND (pg_has_role(theirs.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
  AND EXISTS (
      SELECT FROM pg_stat_activity AS later
      WHERE later.backend_type = 'walsender' AND later.datid = holder.datid AND later.usesysid = holder.usesysid
        AND later.backend_start > holder.backend_start AND later.query ~ ('\m' || slot.slot_name || '\M')
        AND NOT EXISTS (SELECT FROM pg_replication_slots AS other WHERE other.active_pid = later.pid)
  )

-- name: beginning
-- The number of the beginning and the place that the connector has confirmed, once its slot has one. And the timeline:
-- after a failover, positions and places of before may mean others.
SELECT beginnings, confirmed_flush_lsn::text AS confirmed,
       left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS timeline
FROM outbox_owner CROSS JOIN pg_replication_slots
WHERE slot_name = 'outbox_' || current_database() AND confirmed_flush_lsn IS NOT NULL

-- name: schemas
SELECT fingerprint, schema FROM outbox_schemas WHERE fingerprint <> ALL ($1::text[])

-- name: waiting
SELECT position, extract(epoch FROM created_at)::float8 AS created
FROM outbox WHERE published_at IS NULL LIMIT $1

-- name: end_of_log
-- Asked after rows were seen, it is beyond the commit of each.
SELECT pg_current_wal_insert_lsn()

-- name: passed
-- The time, once rows are published that were seen in this beginning ($2) before this place in the log ($1): the
-- connector confirms what Kafka has. A new slot has its first place confirmed, at which the connector has not read the
-- table yet: not that one.
SELECT extract(epoch FROM clock_timestamp())::float8
FROM pg_replication_slots
WHERE slot_name = 'outbox_' || current_database()
  AND $1 < confirmed_flush_lsn
  AND $2 = (SELECT beginnings FROM outbox_owner)

-- name: has_publication
SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)

-- name: publish
CREATE PUBLICATION $1 FOR TABLE outbox, cdc_heartbeat WITH (publish = 'insert')

-- name: largest
-- In words: what stops a connector that met a row that is too large.
SELECT format('%s (topic %s, %s bytes, `steadfaust outbox show %s`)', id, topic, octet_length(payload), id)
FROM outbox WHERE published_at IS NULL ORDER BY octet_length(payload) DESC LIMIT 1

-- name: polling_relays
-- Each holds a lock of members ($1) in this database.
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = $1::bigint::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
