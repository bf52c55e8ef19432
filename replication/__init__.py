"""Partitions, in-sync replicas, high watermark, purgatory; the quorum and its controller."""
