"""Log directories and their logs: whose they are, what is created, deleted, moved, flushed.

`log_manager` and `future_logs` know each other: the second is the part of the first that moves
logs.
"""
