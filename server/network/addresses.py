"""Addresses of peers as they are written (PURE)."""

from __future__ import annotations

import ipaddress


def canonical_address(text: str) -> str:
    """The one form in which a connection tells its peer: no zone, IPv4 for what IPv6 maps it to.

    Raises ValueError when it is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
