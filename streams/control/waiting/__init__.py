"""Messages that wait: which, for what, until when."""
