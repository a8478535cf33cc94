"""The Faust, aiokafka and RocksDB side: everything that imports them, and nothing else."""
