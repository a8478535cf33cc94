"""Lane counts, positions, the topics that these belong to, resharding, and what an operator accepts."""
