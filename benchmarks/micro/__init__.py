"""What one function costs, without sockets where it can be: microseconds, best of several.

`codec`, `log`, `records`, `replication` and `requests` print many figures, each for the module it
is named after; `python -m benchmarks.micro` prints the few that CI watches, beside their budgets.
"""
