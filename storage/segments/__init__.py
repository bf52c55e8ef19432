"""A log's files: segments, their indexes, and how one is put in another's place."""
