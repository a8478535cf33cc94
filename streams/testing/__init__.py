"""Fakes for tests: a broker, stores, a clock, and faults at chosen points. No Kafka, RocksDB or network."""
