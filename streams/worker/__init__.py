"""The start-up of a worker: puts the engine, Kafka, Faust, RocksDB and the pages together."""
