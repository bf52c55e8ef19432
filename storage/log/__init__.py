"""One partition's log: appends, reads, truncation, producers and leader epochs.

`partition_log` is one object with one lock; what it does at length is in `leader_append`,
`follower_append`, `log_sync`, `producer_replay`, `retention` and `truncation`, which know it, and
it them.
"""
