"""Sockets, framing and the request channel: from bytes to a decoded request, and back."""
