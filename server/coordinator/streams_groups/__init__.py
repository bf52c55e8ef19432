"""Streams groups (KIP-1071): the coordinator gives tasks of a topology to Kafka Streams' threads
(PURE).

topology    what a topology needs: topics that must exist, with how many partitions, and its tasks
tasks       tasks by what is done with them: active, standby, warm-up
member      one member: its process, what it has, what it must give back
reconcile   the next step of one member towards the target assignment
assignor    the target assignment, from processes and the target before
group       one group
protocol    what heartbeats and time do to the groups of one shard
internal_topics   topics that the broker makes on a client's behalf (not pure)
"""
