"""Share groups (KIP-932): members that consume the same partitions, record by record (PURE).

member      one member: what it asked for, and what it has
assignor    which members share which partitions
topics      partitions whose state is kept (server.coordinator.share), is about to be, or goes
group       one group
protocol    what heartbeats and time do to the groups of one shard
admin       what administrators do to a group's state
service     what leaves the shard: state is begun, read and deleted where it is kept (not pure)
"""
