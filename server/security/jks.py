"""Java's key store format, JKS: what keytool wrote before Java 9 by default. PURE.

    FE ED FE ED, version 2, count of entries; each: tag, alias, time, then
    1  a private key (an EncryptedPrivateKeyInfo of Sun's own), and its chain of certificates
    2  a trusted certificate
    SHA-1 over password (UTF-16), "Mighty Aphrodite" and all that stands before it

The key is hidden by an exclusive-or with a keystream of SHA-1 (OID 1.3.6.1.4.1.42.2.17.1.1): weak
by today's measure; that is what these files are.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

MAGIC = b"\xfe\xed\xfe\xed"
_WHITENER = b"Mighty Aphrodite"
_DIGEST = 20
_HEAD = struct.Struct(">ii")
_INT = struct.Struct(">i")
_ENTRIES_MAX = 10_000


class JksError(ValueError):
    """The file cannot be used; the text says why."""


class JksKey(NamedTuple):
    """A private key, still hidden, and its certificates in DER."""

    alias: str
    hidden: bytes
    chain: tuple[bytes, ...]


class Jks(NamedTuple):
    """What a file holds."""

    keys: tuple[JksKey, ...]
    trusted: tuple[bytes, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def take(self, count: int) -> bytes:
        end = self._pos + count
        if count < 0 or end > len(self._data):
            raise JksError("the file is cut off")
        taken, self._pos = self._data[self._pos : end], end
        return taken

    def int32(self) -> int:
        value: int = _INT.unpack(self.take(4))[0]
        return value

    def text(self) -> str:
        return self.take(int.from_bytes(self.take(2), "big")).decode("utf-8", "replace")

    def certificate(self, version: int) -> bytes:
        if version == 2 and self.text() != "X.509":
            raise JksError("it holds a certificate that is no X.509")
        return self.take(self.int32())


def read_jks(data: bytes, password: str | None) -> Jks:
    """Without a password nothing is verified, as in Java. Raises JksError."""
    if len(data) < len(MAGIC) + _HEAD.size + _DIGEST or data[:4] != MAGIC:
        raise JksError("it is no JKS file, or cut off")
    if password is not None:
        digest = _sha1(_utf16(password) + _WHITENER + data[:-_DIGEST])
        if not hmac.compare_digest(digest, data[-_DIGEST:]):
            raise JksError("the password is wrong, or the file was changed")
    version, count = _HEAD.unpack_from(data, 4)
    if version not in (1, 2) or not 0 <= count <= _ENTRIES_MAX:
        raise JksError("it is of a version that nobody knows")
    reader = _Reader(data[4 + _HEAD.size : -_DIGEST])
    keys, trusted = [], []
    try:
        for _ in range(count):
            tag, alias = reader.int32(), reader.text()
            reader.take(8)
            if tag == 1:
                hidden = reader.take(reader.int32())
                chain = tuple(reader.certificate(version) for _ in range(reader.int32()))
                keys.append(JksKey(alias, hidden, chain))
            elif tag == 2:
                trusted.append(reader.certificate(version))
            else:
                raise JksError("it holds an entry of a kind that nobody knows")
    except struct.error as error:
        raise JksError("the file is cut off") from error
    return Jks(tuple(keys), tuple(trusted))


def open_key(hidden: bytes, password: str) -> bytes:
    """The private key as PKCS#8 in DER. Raises JksError for a wrong password."""
    body = _encrypted_data(hidden)
    salt, data, check = body[:_DIGEST], body[_DIGEST:-_DIGEST], body[-_DIGEST:]
    secret = _utf16(password)
    stream, block = bytearray(), salt
    while len(stream) < len(data):
        block = _sha1(secret + block)
        stream += block
    key = bytes(a ^ b for a, b in zip(data, stream, strict=False))
    if not hmac.compare_digest(_sha1(secret + key), check):
        raise JksError("the key's password is wrong")
    return key


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


def _encrypted_data(der: bytes) -> bytes:
    """The OCTET STRING of an EncryptedPrivateKeyInfo."""
    outer = _content(der, 0, 0x30)
    algorithm = _content(outer[0], 0, 0x30)
    octets = _content(outer[0], algorithm[1], 0x04)[0]
    if len(octets) < 2 * _DIGEST:
        raise JksError("its private key is cut off")
    return octets


def _content(data: bytes, pos: int, tag: int) -> tuple[bytes, int]:
    """The content of the DER value at `pos`, and where the next begins."""
    if pos + 2 > len(data) or data[pos] != tag:
        raise JksError("its private key is not readable")
    size, start = data[pos + 1], pos + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(data[start : start + count], "big"), start + count
    return data[start : start + size], start + size


def _sha1(data: bytes) -> bytes:
    """What the format asks for; where SHA-1 is forbidden for security, stores are read all the
    same: who wants them safe has PKCS12."""
    return hashlib.sha1(data, usedforsecurity=False).digest()
