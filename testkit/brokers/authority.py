"""Authorities that live as long as a test, and the certificates of nodes that they sign.

The subject of a node's certificate is the same whoever signs it, as an operator's is: a certificate
of another subject is not taken while a node runs (TLS-22).
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

HOSTS = ("localhost", "127.0.0.1")


def key_and_chain(cert: trustme.LeafCert) -> tuple[bytes, bytes]:
    """The key, in PKCS#8 as Java wants it, and the certificates; PEM."""
    key = load_pem_private_key(cert.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pkcs8, b"".join(one.bytes() for one in cert.cert_chain_pems)


class Authority:
    """One authority."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    @property
    def certificate(self) -> bytes:
        """What others trust; PEM."""
        return self._ca.cert_pem.bytes()

    def issue(self, name: str) -> bytes:
        """Key and certificate of a node on this machine; PEM in one."""
        cert = self._ca.issue_cert(
            *HOSTS, common_name=name, organization_unit_name="nodes", organization_name="tests"
        )
        return b"".join(key_and_chain(cert))

    def context(self, own: Path | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority and no other, with a certificate or without."""
        context = ssl.create_default_context(cadata=self.certificate.decode("ascii"))
        if own is not None:
            context.load_cert_chain(own)
        return context


def put(path: Path, content: bytes) -> None:
    """Replace a file as a whole, for its owner alone, as whoever renews certificates does."""
    fresh = path.with_suffix(".new")
    fresh.touch(0o600)
    fresh.write_bytes(content)
    os.replace(fresh, path)
