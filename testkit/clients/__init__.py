"""Clients that tests drive: what each of them needs to be used in a few lines."""
