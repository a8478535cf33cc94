"""The orders API: orders over HTTP into PostgreSQL, by its outbox to Kafka, and what became of them back."""
