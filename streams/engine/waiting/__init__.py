"""Messages that wait for a handler: gates, queues, the scheduler of their heads, decisions on failures."""
