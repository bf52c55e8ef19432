"""The transaction coordinator: the pattern of `server.coordinator` over `__transaction_state`.

From the inside out: `state` is one id's life as a value, `records` its bytes, `shard` the machine
of one partition, `coordinator` what handlers ask. Markers (`coordinator.transaction_markers`) are
the word between this, who carries them, and the groups whose offsets they end.
"""
