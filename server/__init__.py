"""Sockets, request handlers and coordinators: everything a client talks to."""
