"""A transactional producer of our own over aiokafka's connections (docs/adr/0042)."""
