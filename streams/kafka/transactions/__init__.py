"""A transactional producer that uses aiokafka's connections (docs/adr/0042)."""
