"""Partitions, in-sync replicas, high watermark, purgatory; the metadata quorum and its controller."""
