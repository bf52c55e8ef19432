"""One partition's log: appends, reads, truncation, producers and leader epochs."""
