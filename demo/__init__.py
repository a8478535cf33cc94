"""The demo: real purchases through the order application on a real Kafka, and an independent check."""
