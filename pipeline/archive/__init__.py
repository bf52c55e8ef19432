"""Topics in a directory, every record once: what counts (log, state), what writes it (archive),
what merges its files (compaction), what proves it (checksum).
"""
