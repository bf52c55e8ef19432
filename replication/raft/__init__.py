"""The metadata quorum: Raft as Apache Kafka speaks it (KIP-595, KIP-630, KIP-996), for one log.

`core` decides (PURE), `log` keeps the bytes, `driver` owns both in one thread. Nothing here knows
what a metadata record means: records are opaque values behind a `RecordSerde`.
"""
