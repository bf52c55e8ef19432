"""Bytes to objects and back: Kafka's messages, record batches, frames. Imports none of ours."""
