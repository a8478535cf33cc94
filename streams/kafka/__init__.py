"""Clients of Kafka: connections, readers, topics, and requests that aiokafka lacks."""
