"""Reads and writes record batches in Kafka's storage format."""
