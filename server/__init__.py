"""Sockets, request handlers and coordinators: everything a client talks to."""

__version__ = "0.1.0"  # the one place: pyproject.toml reads it
