"""Messages that wait for a handler: gates, queues and the scheduler of their heads; timers; dead letters."""
