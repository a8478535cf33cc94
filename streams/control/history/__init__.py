"""Records of topics, timelines of messages, changes of rows."""
