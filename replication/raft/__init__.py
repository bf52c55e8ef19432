"""The metadata quorum: Raft as Apache Kafka speaks it (KIP-595, KIP-630, KIP-996), for one log.

`core` decides (PURE), `log` keeps the bytes, `driver` owns both in one thread. Nothing here knows
what a metadata record means: records are opaque values behind a `RecordSerde`.

Modules that know each other: `core`, `moves`, `answers`, `peers` are one machine, whose part for
several replicas a single voter never loads; `own_events` and `events` are its words, cut in the
same place. What the machine is made of (`election`, `fetcher`, `voter_changes`, `roles`) does not
know it, but what it is given.
"""
