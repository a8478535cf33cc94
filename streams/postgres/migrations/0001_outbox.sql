-- The outbox. Its table comes with the outbox itself.
SELECT;
