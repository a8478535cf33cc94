-- Messages whose payload is an object in the object store: the row has where it is, and an empty payload. Text, as the
-- headers of the record have it. Without a default and without a check: no row is touched.
ALTER TABLE outbox
    ADD COLUMN ce_dataref   text,
    ADD COLUMN claim_sha256 text,
    ADD COLUMN claim_size   text;
ALTER TABLE outbox_archive
    ADD COLUMN ce_dataref   text,
    ADD COLUMN claim_sha256 text,
    ADD COLUMN claim_size   text;
