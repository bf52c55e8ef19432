"""The controller: decides every change of the cluster's metadata and answers when it is committed.

One pattern (docs/ARCHITECTURE.md): `handle(request, now_ms) -> (records, response)`, append,
replay at once, answer when committed and published. `controller` is the shell with the thread;
everything else here is PURE: `topics`, `configs`, `cluster`, `elections`, `partition_change`,
`placement`, `producer_ids`, `bootstrap`.
"""
