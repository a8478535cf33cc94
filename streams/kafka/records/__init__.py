"""Record batches as Kafka stores them, read with care."""
