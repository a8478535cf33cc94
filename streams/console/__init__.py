"""The pages of a worker: they show the answers of `streams.control`, and have forms for its operations."""
