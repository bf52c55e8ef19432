"""What must be known of an X.509 certificate: subject, names, end of validity. PURE.

Why our own reader: Python's `ssl` loses the structure of names, and Java writes a subject in its
own way (TLS-11, X500Principal.getName()), which needs the DER of values it does not know. It is 40
lines of DER, and spares clients' certificates the package `cryptography`. What is read was verified
by OpenSSL before, or is the operator's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

_KEYWORDS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.10": "O",
    "2.5.4.11": "OU", "2.5.4.9": "STREET", "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
_SAN = "2.5.29.17"
_ENCODINGS = {
    12: "utf-8", 18: "ascii", 19: "ascii", 20: "latin-1", 22: "ascii", 26: "ascii",
    28: "utf-32-be", 30: "utf-16-be",
}  # fmt: skip
_SEQUENCE, _OID, _BOOLEAN, _OCTETS, _UTC_TIME = 0x30, 0x06, 0x01, 0x04, 0x17
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_SPECIAL = frozenset(',+"\\<>;=#')


class CertificateError(ValueError):
    """The bytes are no certificate."""


class Certificate(NamedTuple):
    """One certificate, as far as we ask."""

    subject: str
    """As Java's X500Principal.getName() writes it (RFC 2253)."""
    alternative_names: frozenset[bytes]
    not_before: datetime
    not_after: datetime


class _Value(NamedTuple):
    tag: int
    body: bytes
    der: bytes


def _values(data: bytes) -> Iterator[_Value]:
    pos = 0
    while pos < len(data):
        start = pos
        tag = data[pos]
        size = data[pos + 1]
        pos += 2
        if size & 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4:
                raise CertificateError("a length of no or too many bytes")
            size = int.from_bytes(data[pos : pos + count], "big")
            pos += count
        if pos + size > len(data):
            raise CertificateError("it is cut off")
        yield _Value(tag, data[pos : pos + size], data[start : pos + size])
        pos += size


def _oid(body: bytes) -> str:
    first = min(body[0] // 40, 2)
    numbers = [first, body[0] - 40 * first]
    number = 0
    for byte in body[1:]:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    return ".".join(map(str, numbers))


def read_certificate(der: bytes) -> Certificate:
    """Raises CertificateError."""
    try:
        (whole,) = _values(der)
        fields = list(_values(next(_values(whole.body)).body))
        if fields[0].tag == _VERSION:
            del fields[0]
        _serial, _algorithm, _issuer, validity, subject = fields[:5]
        return Certificate(
            _name(subject.body),
            _alternative_names(fields[6:]),
            *map(_time, list(_values(validity.body))[:2]),
        )
    except CertificateError:
        raise
    except (ValueError, IndexError, StopIteration, LookupError) as error:
        raise CertificateError("it is no X.509 certificate") from error


def _time(value: _Value) -> datetime:
    text = value.body.decode("ascii")
    if value.tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _alternative_names(fields: list[_Value]) -> frozenset[bytes]:
    for field in fields:
        if field.tag != _EXTENSIONS:
            continue
        for extension in _values(next(_values(field.body)).body):
            parts = list(_values(extension.body))
            if _oid(parts[0].body) == _SAN:
                names = next(_values(parts[-1].body))
                return frozenset(name.der for name in _values(names.body))
    return frozenset()


def _name(body: bytes) -> str:
    """A Name: the last RDN first."""
    return ",".join("+".join(map(_attribute, _values(rdn.body))) for rdn in [*_values(body)][::-1])


def _attribute(attribute: _Value) -> str:
    kind, value = _values(attribute.body)
    oid = _oid(kind.body)
    keyword = _KEYWORDS.get(oid)
    encoding = _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{value.der.hex()}"
    return f"{keyword}={_escaped(value.body.decode(encoding))}"


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    begin = len(text) - len(text.lstrip(" "))
    end = len(text) - len(text.rstrip(" ")) if inner else 0
    escaped = "".join(f"\\{c}" if c in _SPECIAL else c for c in inner)
    return "\\ " * begin + escaped + "\\ " * end
