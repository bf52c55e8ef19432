"""Bytes to objects and back: Kafka's messages, record batches, frames. Imports none of ours.

`schema` and `codec` know each other: a message is declared in the first, and the second writes its
code when it is first used.
"""
