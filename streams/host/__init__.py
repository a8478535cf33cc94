"""What lanes run in: Faust's app, group membership and process, RocksDB, and clients of the topics."""
