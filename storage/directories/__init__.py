"""Log directories and their logs: whose they are, what is created, deleted, moved, flushed."""
