"""The orders API: orders over HTTP into PostgreSQL, by its outbox to Kafka, and their ends back."""
