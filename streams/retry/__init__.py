"""What waits for a handler: gates, queues, the scheduler of their heads, and decisions on failures."""
