-- The archive by days, so that a cleanup drops whole days and leaves no dead rows behind. What was archived before is
-- one partition as it is, up to the day after tomorrow: no row moves, and the check of its rows is the only work. The
-- cleanup makes the days that come. What comes for a day that nobody has made goes to the rest: no relay waits for it.
ALTER TABLE outbox_archive RENAME TO outbox_archive_before;
ALTER INDEX outbox_archive_pkey RENAME TO outbox_archive_before_pkey;
CREATE TABLE outbox_archive (
    LIKE outbox_archive_before INCLUDING DEFAULTS INCLUDING GENERATED, PRIMARY KEY (published_at, position)
) PARTITION BY RANGE (published_at);
CREATE TABLE outbox_archive_rest PARTITION OF outbox_archive DEFAULT;
DO $$
BEGIN
    EXECUTE format(
        'ALTER TABLE outbox_archive ATTACH PARTITION outbox_archive_before FOR VALUES FROM (MINVALUE) TO (%L)',
        date_trunc('day', now(), 'UTC') + interval '48 hours'
    );
END
$$;
