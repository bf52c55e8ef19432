"""Bytes to objects and back: Kafka's messages, record batches and frames. Imports none of our packages."""
