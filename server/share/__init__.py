"""Share groups (KIP-932) at the leader of a partition: who has which record, and how often it came.

`in_flight`, `acquisition` and `share_partition` are the state machine, PURE.
"""
