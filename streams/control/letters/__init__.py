"""Dead letters: lists, groups, replays and their jobs."""
