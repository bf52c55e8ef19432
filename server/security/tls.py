"""TLS as Kafka's ssl.* keys describe it: the contexts of a listener and of a client.

Protocols TLSv1.2 and TLSv1.3, no renegotiation, no compression, no tickets (a reload ends what was
agreed before). Client certificates: `ssl.client.auth` none, requested (a bad one still ends the
handshake) or required. Names are verified by clients only (`ssl.endpoint.identification.algorithm`,
https by default). Cipher suites have IANA's names and are mapped to OpenSSL's; which suites of TLS
1.3 are offered cannot be chosen with Python's `ssl`, so a list without all three of them is obeyed
by not offering TLS 1.3 at all, if it has none, and said in the log otherwise.

Imports `ssl`, which costs 12 ms: a node without TLS never imports this module.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

from server.config.kafka_config import ConfigError
from server.security.certificates import Certificate, CertificateError, read_certificate
from server.security.stores import KeyMaterial, read_key_store, read_trust_store

logger = logging.getLogger(__name__)

PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
RELOADABLE = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)
_TLS13_SUITES = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
_PARTIAL_CHAIN = getattr(ssl, "VERIFY_X509_PARTIAL_CHAIN", ssl.VerifyFlags(0x80000))
_EXPIRY_WARNING = timedelta(days=30)


class TlsValues(Protocol):
    """The ssl.* keys of one listener, or of a client's file."""

    def text(self, name: str) -> str: ...
    def get_list(self, name: str) -> list[str]: ...
    def error(self, name: str, expected: str) -> ConfigError: ...


class Identity(NamedTuple):
    """What a context was made of, as far as a reload must compare it (TLS-22)."""

    own: Certificate | None
    trusted: int | None
    """How many authorities; None for the system's."""


class Tls(NamedTuple):
    """A context that is ready, and what it says."""

    context: ssl.SSLContext
    identity: Identity
    is_among_nodes: bool = False
    as_client: ssl.SSLContext | None = None
    """That of another node with the same stores, who dials; None if it would not be believed."""


def server_tls(values: TlsValues, *, client_auth: str) -> Tls:
    """The context of a listener. Raises ConfigError."""
    key = read_key_store(values)
    if key is None:
        raise values.error(
            "ssl.keystore.location", "expected a key store: a listener with TLS needs a certificate"
        )
    if client_auth not in CLIENT_AUTH:
        raise values.error("ssl.client.auth", f"expected one of {', '.join(CLIENT_AUTH)}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = CLIENT_AUTH[client_auth]
    context.num_tickets = 0
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    return Tls(context, _fill(context, values, key))


def with_nodes(values: TlsValues, tls: Tls) -> Tls:
    """The same of a listener where nodes speak to each other: they have the same authorities."""
    client = _another_node(values)
    why = _disbelief(tls.context, client)
    if why:
        logger.warning(
            "the trust store does not believe the certificate in ssl.keystore.location (%s): nodes"
            " that have the same cannot speak to each other",
            why,
        )
    return tls._replace(is_among_nodes=True, as_client=None if why else client)


def client_tls(values: TlsValues) -> Tls:
    """The context of a client, who has a certificate of its own or not. Raises ConfigError."""
    algorithm = values.text("ssl.endpoint.identification.algorithm")
    if algorithm.lower() not in ("", "https"):
        raise values.error(
            "ssl.endpoint.identification.algorithm", "expected https, or nothing for no check"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = algorithm != ""
    return Tls(context, _fill(context, values, read_key_store(values)))


def _fill(context: ssl.SSLContext, values: TlsValues, key: KeyMaterial | None) -> Identity:
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    _set_protocols(context, values)
    _set_ciphers(context, values)
    trusted = read_trust_store(values)
    try:
        if trusted is None:
            context.load_default_certs(
                ssl.Purpose.CLIENT_AUTH
                if context.protocol == ssl.PROTOCOL_TLS_SERVER
                else ssl.Purpose.SERVER_AUTH
            )
        else:
            context.load_verify_locations(cadata=b"".join(trusted))
            context.verify_flags |= _PARTIAL_CHAIN  # every entry is an anchor, as in Java
    except (ssl.SSLError, ValueError):
        raise values.error("ssl.truststore.location", "holds what is no certificate") from None
    own = None
    if key is not None:
        own = _own(values, key)
        try:
            _load_chain(context, key)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise values.error("ssl.keystore.location", _why_no_chain(error)) from None
    return Identity(own, None if trusted is None else len(trusted))


def _own(values: TlsValues, key: KeyMaterial) -> Certificate:
    try:
        return read_certificate(key.chain[0])
    except CertificateError:
        raise values.error("ssl.keystore.location", "its certificate cannot be read") from None


def _why_no_chain(error: Exception) -> str:
    """Java takes certificates whose signature or key is too weak for OpenSSL's security level."""
    reason = getattr(error, "reason", None) or ""
    if reason.endswith(("_TOO_WEAK", "_TOO_SMALL")):
        what = "signature (SHA-1?)" if reason.endswith("_WEAK") else "key"
        said = reason.replace("_", " ").lower()
        return f"the {what} of a certificate in it is too weak for OpenSSL: {said}"
    return "ssl.key.password is wrong, or key and certificate do not fit"


def _load_chain(context: ssl.SSLContext, key: KeyMaterial) -> None:
    """OpenSSL wants a file; no key of ours is left behind in one."""
    with _secret_file(key.pem()) as path:
        # A password that is not needed is never asked for; without one nobody may be asked.
        context.load_cert_chain(path, password=lambda: (key.key_password or "").encode())


@contextlib.contextmanager
def _secret_file(data: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(fd, data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    fd, path = tempfile.mkstemp()  # 0600
    try:
        os.write(fd, data)
        os.close(fd)
        yield path
    finally:
        Path(path).unlink()


def _set_protocols(context: ssl.SSLContext, values: TlsValues) -> None:
    names = values.get_list("ssl.enabled.protocols")
    known = [PROTOCOLS[name] for name in names if name in PROTOCOLS]
    if not known or len(known) != len(names):
        raise values.error("ssl.enabled.protocols", f"expected some of {', '.join(PROTOCOLS)}")
    if values.text("ssl.protocol") not in ("TLS", *PROTOCOLS):
        raise values.error("ssl.protocol", f"expected one of TLS, {', '.join(PROTOCOLS)}")
    context.minimum_version, context.maximum_version = min(known), max(known)


def _set_ciphers(context: ssl.SSLContext, values: TlsValues) -> None:
    names = values.get_list("ssl.cipher.suites")
    if not names:
        return
    offered = {str(cipher["name"]) for cipher in _all_ciphers()}
    older = []
    for name in names:
        if name in _TLS13_SUITES:
            continue
        suite = openssl_name(name)
        if suite not in offered:
            raise values.error("ssl.cipher.suites", f"{name[:64]!r} is not known here")
        older.append(suite)
    newer = _TLS13_SUITES & set(names)
    if not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif newer != _TLS13_SUITES:
        logger.warning("ssl.cipher.suites: all suites of TLS 1.3 are offered, not only those named")
    if older:
        context.set_ciphers(":".join(older))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise values.error("ssl.cipher.suites", "has no suite for any of ssl.enabled.protocols")


def _all_ciphers() -> Sequence[dict[str, object]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:!aNULL:!eNULL")
    return context.get_ciphers()  # type: ignore[return-value]


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite that is named as IANA does; nonsense for other names."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("POLY1305_SHA256", "POLY1305").replace("_CBC_", "_")
    prefix = "" if exchange == "RSA" else exchange.replace("_", "-") + "-"
    return prefix + cipher.replace("_", "-")


def stores_named(values: TlsValues) -> tuple[str, ...]:
    """What the keys say of stores."""
    return tuple(values.text(name) for name in RELOADABLE)


def stores_seen(values: TlsValues) -> tuple[object, ...]:
    """What must differ for a reload to do anything: the keys, and the age of the files."""
    seen: list[object] = [*stores_named(values)]
    for name in ("ssl.keystore.location", "ssl.truststore.location"):
        try:
            state = os.stat(values.text(name)) if values.text(name) else None
        except (OSError, ValueError):
            state = None
        seen.append(None if state is None else (state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(seen)


def check_exchange(values: TlsValues, old: Tls, new: Tls) -> Tls:
    """What a running listener takes for the old: the new, if it may (TLS-22).

    Raises ConfigError.
    """
    _check_identity(values, old.identity, new.identity)
    if not old.is_among_nodes:
        return new
    if old.as_client is None or _disbelief(old.context, old.as_client):
        return with_nodes(values, new)  # nothing is lost: one has expired, or they never did
    client = _another_node(values)
    if why := _disbelief(new.context, old.as_client) or _disbelief(old.context, client):
        raise values.error(
            "ssl.keystore.location",
            "other nodes, with the stores of before, and this one would not believe each other"
            f" ({why}): first let each trust both authorities, then give each a certificate of"
            " the new one, then take the old one away",
        )
    return new._replace(is_among_nodes=True, as_client=client)


def _another_node(values: TlsValues) -> ssl.SSLContext:
    """One with these stores, as it dials; the names in certificates are another question."""
    context = client_tls(values).context
    context.check_hostname = False
    return context


def _disbelief(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Why they do not shake hands, tried in memory (SslEngineValidator); "" if they do."""
    questions, answers = ssl.MemoryBIO(), ssl.MemoryBIO()
    dials = client.wrap_bio(answers, questions)
    listens = server.wrap_bio(questions, answers, server_side=True)
    try:
        while not _goes_on(dials) & _goes_on(listens):
            pass
    except ssl.SSLError as error:
        return error.reason or str(error)
    return ""


def _goes_on(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _check_identity(values: TlsValues, old: Identity, new: Identity) -> None:
    if (old.trusted is None) != (new.trusted is None):
        raise values.error("ssl.truststore.location", "cannot be added or removed at run time")
    if old.own is None or new.own is None:
        return
    if old.own.subject != new.own.subject and values.text("ssl.allow.dn.changes") != "true":
        raise values.error(
            "ssl.keystore.location",
            "the certificate is of another subject; ssl.allow.dn.changes=true would allow that",
        )
    lost = old.own.alternative_names - new.own.alternative_names
    if lost and values.text("ssl.allow.san.changes") != "true":
        raise values.error(
            "ssl.keystore.location",
            "the certificate has lost a name; ssl.allow.san.changes=true would allow that",
        )


def expiry_warning(own: Certificate | None, wall: datetime | None = None) -> str | None:
    """What to say of a certificate that ends soon, has ended, or is not valid yet."""
    if own is None:
        return None
    now = wall or datetime.now(UTC)
    if now < own.not_before:
        begin = f"{own.not_before:%Y-%m-%d %H:%M} UTC"
        return f"the certificate of {own.subject} is not valid before {begin}: is the clock right?"
    left = own.not_after - now
    if left > _EXPIRY_WARNING:
        return None
    how = "has expired" if left <= timedelta(0) else f"expires in {left.days} days"
    return f"the certificate of {own.subject} {how} ({own.not_after:%Y-%m-%d})"
