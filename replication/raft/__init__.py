"""The metadata quorum: Raft as Apache Kafka speaks it (KIP-595, KIP-630, KIP-996), for one log.

`core` decides (PURE), `log` keeps the bytes, `driver` owns both in one thread. Nothing here knows
what a metadata record means: records are opaque values behind a `RecordSerde`.

From the top: `core` steps, with `peers` (what was answered, time passed) and `answers` (what is
asked), on what `quorum_state` knows, whose role is one of `roles`, made of `election`, `fetcher`,
`leader_state` and `voter_changes`. A single voter loads nothing that is for several.
`own_events` and `events` know each other: the words are cut in the same place.
"""
