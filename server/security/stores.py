"""Key stores and trust stores: PEM, PKCS12 and JKS, as Kafka's keys name them.

    ssl.keystore.location + .password                   JKS or PKCS12, told apart by their magic
    ssl.keystore.type=PEM + location                    key and chain in one file
    ssl.keystore.type=PEM + .key + .certificate.chain   the same inline
    ssl.truststore.location (+ .password), .certificates likewise; none: the system's authorities

Which combinations are mistakes is DefaultSslEngineFactory's (TLS-2, TLS-3). PEM keys are PKCS#8, as
Java reads them. PKCS12 needs the package `cryptography` (extra `tls`); nothing else does. A store
is read whole when the node starts: a wrong password shows then, not at the first connection.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import stat
from typing import Any, NamedTuple, Protocol

from server.config.kafka_config import ConfigError
from server.config.secret_files import warn_of_others
from server.security import jks

logger = logging.getLogger(__name__)

_PKCS12 = 0x30
_JCEKS = b"\xce\xce\xce\xce"
_BLOCK = re.compile(
    rb"-----BEGIN (?P<label>[A-Z0-9 ]++)-----"
    rb"(?P<body>[^-]*+(?:-{1,4}+[^-]++)*+)-----END (?P=label)-----"
)
"""What begins and does not end costs as far as the next one begins, and not to the end of all: text
of 32 KB that a request brings stood still the process for seconds."""
_KEY_KINDS = (b"PRIVATE KEY", b"ENCRYPTED PRIVATE KEY")
_STORE_BYTES_MAX = 16 << 20


class StoreValues(Protocol):
    """The ssl.* keys of one listener, or of a client."""

    def text(self, name: str) -> str: ...
    def error(self, name: str, expected: str) -> ConfigError: ...


class KeyMaterial(NamedTuple):
    """A private key with its chain, the end entity's certificate first; all in DER or PEM."""

    chain: tuple[bytes, ...]
    key_pem: bytes
    key_password: str | None

    def pem(self) -> bytes:
        """Key and chain, as OpenSSL reads them from one file."""
        return self.key_pem + b"\n" + b"".join(map(_pem_certificate, self.chain))

    def __repr__(self) -> str:
        return f"KeyMaterial({len(self.chain)} certificates)"


def read_key_store(values: StoreValues) -> KeyMaterial | None:
    """The node's own key; None if the keys name none. Raises ConfigError."""
    kind, path = values.text("ssl.keystore.type").upper(), values.text("ssl.keystore.location")
    password = values.text("ssl.keystore.password")
    key, chain = values.text("ssl.keystore.key"), values.text("ssl.keystore.certificate.chain")
    key_password = values.text("ssl.key.password")
    if key or chain:
        _check_inline(values, "key" if key else "certificate.chain", "keystore", kind)
        if not chain:
            raise values.error("ssl.keystore.key", "needs ssl.keystore.certificate.chain beside it")
        if not key:
            raise values.error("ssl.keystore.certificate.chain", "needs ssl.keystore.key beside it")
        return _pem_key(values, "ssl.keystore.key", f"{key}\n{chain}".encode(), key_password)
    if not path:
        if password:
            raise values.error("ssl.keystore.password", "needs ssl.keystore.location beside it")
        return None
    name = "ssl.keystore.location"
    if kind == "PEM":
        _refuse_password(values, "keystore")
        data = _read(values, name, path)
        return _pem_key(values, name, data, key_password)
    if not password:
        raise values.error(name, "needs ssl.keystore.password beside it")
    data = _read(values, name, path)
    if data[:4] == jks.MAGIC:
        return _jks_key(values, data, password, key_password)
    return _pkcs12_key(values, data, password)


def read_trust_store(values: StoreValues) -> tuple[bytes, ...] | None:
    """Certificates in DER; None if the keys name no store. Raises ConfigError."""
    kind, path = values.text("ssl.truststore.type").upper(), values.text("ssl.truststore.location")
    password, inline = (
        values.text("ssl.truststore.password"),
        values.text("ssl.truststore.certificates"),
    )
    if inline:
        _check_inline(values, "certificates", "truststore", kind)
        return _pem_certificates(values, "ssl.truststore.certificates", inline.encode())
    if not path:
        if password:
            raise values.error("ssl.truststore.password", "needs ssl.truststore.location beside it")
        return None
    name = "ssl.truststore.location"
    if kind == "PEM":
        _refuse_password(values, "truststore")
        return _pem_certificates(values, name, _read(values, name, path))
    data = _read(values, name, path)
    if data[:4] == jks.MAGIC:
        found = _jks(values, name, data, password or None)
        certificates = (*found.trusted, *(key.chain[0] for key in found.keys if key.chain))
    else:
        certificates = _pkcs12_trusted(values, data, password)
    if not certificates:
        raise values.error(name, "the store holds no certificate: nobody could be trusted")
    return certificates


def _check_inline(values: StoreValues, name: str, store: str, kind: str) -> None:
    if kind != "PEM":
        raise values.error(f"ssl.{store}.type", f"expected PEM, for ssl.{store}.{name} is given")
    if values.text(f"ssl.{store}.location"):
        raise values.error(
            f"ssl.{store}.location", f"is given beside ssl.{store}.{name}: expected one of them"
        )
    _refuse_password(values, store)


def _refuse_password(values: StoreValues, store: str) -> None:
    if values.text(f"ssl.{store}.password"):
        raise values.error(
            f"ssl.{store}.password", "PEM has no store password, only ssl.key.password for its key"
        )


def _read(values: StoreValues, name: str, path: str) -> bytes:
    """A pipe or a terminal is none: nobody may write into it, ever, and who names a store of a
    running node must not take its thread with that."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(_STORE_BYTES_MAX + 1) if is_file else b""
            if name == "ssl.keystore.location":
                warn_of_others(path, file.fileno())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        raise values.error(name, f"the file cannot be read: {why}") from None
    if not data or len(data) > _STORE_BYTES_MAX:
        raise values.error(name, "expected a store: a file, not empty, of 16 MiB at most")
    return data


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


# ---- PEM


def _pem_blocks(data: bytes) -> list[tuple[bytes, bytes]]:
    """(label, DER) of each block; `Name: value` lines inside are skipped."""
    blocks = []
    for match in _BLOCK.finditer(data):
        lines = [line for line in match["body"].splitlines() if b":" not in line]
        blocks.append((match["label"], base64.b64decode(b"".join(lines).translate(None, b" \t\r"))))
    return blocks


def _pem_key(values: StoreValues, name: str, data: bytes, password: str) -> KeyMaterial:
    try:
        blocks = _pem_blocks(data)
    except ValueError:
        raise values.error(name, "a PEM block is not base64") from None
    keys = [(label, der) for label, der in blocks if label.endswith(b"PRIVATE KEY")]
    chain = tuple(der for label, der in blocks if label.endswith(b"CERTIFICATE"))
    if len(keys) != 1:
        raise values.error(name, f"expected one private key, found {len(keys)}")
    if not chain:
        raise values.error(name, "expected the certificate of the key beside it")
    label, der = keys[0]
    if label not in _KEY_KINDS:
        raise values.error(
            name,
            f"expected a key in PKCS#8 (BEGIN PRIVATE KEY), found {label.decode()}:"
            " `openssl pkcs8 -topk8 -in FILE` converts it",
        )
    if label == _KEY_KINDS[1] and not password:
        raise values.error(name, "the key is encrypted: expected ssl.key.password")
    return KeyMaterial(chain, _pem(label.decode(), der), password or None)


def _pem_certificates(values: StoreValues, name: str, data: bytes) -> tuple[bytes, ...]:
    try:
        blocks = _pem_blocks(data)
    except ValueError:
        raise values.error(name, "a PEM block is not base64") from None
    found = tuple(der for label, der in blocks if label.endswith(b"CERTIFICATE"))
    if not found:
        raise values.error(name, "expected certificates in PEM (BEGIN CERTIFICATE)")
    return found


def _pem(label: str, der: bytes) -> bytes:
    return b"-----BEGIN %s-----\n%s-----END %s-----\n" % (
        label.encode(), base64.encodebytes(der), label.encode(),
    )  # fmt: skip


def _pem_certificate(der: bytes) -> bytes:
    return _pem("CERTIFICATE", der)


# ---- JKS


def _jks(values: StoreValues, name: str, data: bytes, password: str | None) -> jks.Jks:
    try:
        return jks.read_jks(data, password)
    except jks.JksError as error:
        raise values.error(name, str(error)) from None


def _jks_key(values: StoreValues, data: bytes, password: str, key_password: str) -> KeyMaterial:
    name = "ssl.keystore.location"
    keys = [key for key in _jks(values, name, data, password).keys if key.chain]
    if not keys:
        raise values.error(name, "the store holds no private key with a certificate")
    if len(keys) > 1:
        logger.info("key store holds %d keys, the first is used alias=%r", len(keys), keys[0].alias)
    try:
        der = jks.open_key(keys[0].hidden, key_password or password)
    except jks.JksError as error:
        raise values.error("ssl.key.password", str(error)) from None
    return KeyMaterial(keys[0].chain, _pem("PRIVATE KEY", der), None)


# ---- PKCS12


def _pkcs12(values: StoreValues, name: str, data: bytes, password: str) -> Any:
    if data[0] != _PKCS12:
        kind = "JCEKS" if data[:4] == _JCEKS else "this one"
        raise values.error(
            name,
            f"expected a JKS or PKCS12 store (or ssl.*store.type=PEM), {kind} is not read:"
            " `keytool -importkeystore -deststoretype PKCS12` converts it",
        )
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise values.error(
            name,
            "PKCS12 needs the package cryptography: pip install 'barnabas[tls]', or give PEM files",
        ) from None
    try:
        return pkcs12.load_pkcs12(data, password.encode())
    except ValueError:
        raise values.error(name, "the password is wrong, or the store is damaged") from None
    except UnsupportedAlgorithm as error:
        raise values.error(name, f"the store cannot be read here: {error}") from None


def _pkcs12_key(values: StoreValues, data: bytes, password: str) -> KeyMaterial:
    name = "ssl.keystore.location"
    store = _pkcs12(values, name, data, password)
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if store.key is None or store.cert is None:
        raise values.error(name, "the store holds no private key with a certificate")
    chain, _others = _pkcs12_chain(store)
    pem = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyMaterial(tuple(one.public_bytes(Encoding.DER) for one in chain), pem, None)


def _pkcs12_chain(store: Any) -> tuple[list[Any], list[Any]]:
    """The certificate of the key with the issuer of each behind it, and what else lies there."""
    chain = [] if store.cert is None else [store.cert.certificate]
    others = [other.certificate for other in store.additional_certs]
    while chain and chain[-1].issuer != chain[-1].subject:
        issuer = next((one for one in others if _is_issued(chain[-1], one)), None)
        if issuer is None:
            break
        others.remove(issuer)
        chain.append(issuer)
    return chain, others


def _is_issued(certificate: Any, by: Any) -> bool:
    """By this key, and not only this name, which the authority before a renewed one has, too."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(by)
    except UnsupportedAlgorithm:
        return True  # the names were compared first
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pkcs12_trusted(values: StoreValues, data: bytes, password: str) -> tuple[bytes, ...]:
    """Of a store with a key its certificate, not who issued that: whoever else has a certificate of
    the same authority is not let in by it, unless the authority stands there by itself, too (Java:
    a PrivateKeyEntry's chain is no TrustedCertificateEntry)."""
    name = "ssl.truststore.location"
    if not password and data[0] == _PKCS12:
        raise values.error(
            name, "a PKCS12 store without ssl.truststore.password is read as empty, by Java too"
        )
    store = _pkcs12(values, name, data, password)
    from cryptography.hazmat.primitives.serialization import Encoding

    chain, others = _pkcs12_chain(store)
    return tuple(one.public_bytes(Encoding.DER) for one in (*chain[:1], *others))
