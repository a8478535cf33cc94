"""A lane's life: it opens, recovers, follows as a standby, is watched, and ends."""
