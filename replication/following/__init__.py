"""Partitions that this broker follows: fetching from their leaders."""
