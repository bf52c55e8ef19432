"""Verdicts on what a cluster did, from what clients saw, nodes say and disks hold."""
