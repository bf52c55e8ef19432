"""Requests against this node's partitions: append, read, park until something happens, move."""
