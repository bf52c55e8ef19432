"""One replica of a partition: who leads, who is in sync, what is committed."""
