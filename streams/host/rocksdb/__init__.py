"""Tables of a lane in RocksDB."""
