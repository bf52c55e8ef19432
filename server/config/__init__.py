"""Kafka's keys: their types, defaults, checks and where their values come from."""
