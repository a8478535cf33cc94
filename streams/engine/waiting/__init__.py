"""Messages that wait for a handler: gates, queues and when their heads run; timers; dead letters."""
