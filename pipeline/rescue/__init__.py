"""A whole dead broker into an archive: what its files say (dead_broker), the command (rescue)."""
