"""A throw-away authority and the certificate of a broker, for tests and laptops.

The authority's key is never written where it would stay: whoever gets the files can serve as this
broker, and make no other. Made by the package `cryptography`, or without it by the program
`openssl`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.process import BrokerError, write_private, write_whole

_DAYS = 365
_AUTHORITY, _BROKER = "a throw-away authority of barnabas", "barnabas"
_NO_NAMES = ("", "0.0.0.0", "::")
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name."""


class Certificates(NamedTuple):
    """PEM files."""

    authority: Path
    """What clients trust; no secret."""
    broker: Path
    """Key and certificate of the brokers, for their owner alone."""


def certificates(
    directory: Path, hosts: Iterable[str] = (), also: Iterable[str] = ()
) -> Certificates:
    """Those in a directory; made if they are not there, for this machine's loopback addresses,
    `hosts` and `also`, and made again if they are ours and used up, or not for all of `hosts`: then
    for whoever they were for, too, by another authority. Raises BrokerError, OSError."""
    made = Certificates(directory / "ca.pem", directory / "broker.pem")
    wanted, known = _names(hosts), list[str]()
    if made.authority.exists() and made.broker.exists():
        known, end_s = _read(made)
        if not known or (set(wanted) <= set(known) and time.time() < end_s):
            return made
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = list(dict.fromkeys(["localhost", "127.0.0.1", "::1", *wanted, *_names(also), *known]))
    try:
        authority, broker = _by_cryptography(names)
    except ImportError:
        authority, broker = _by_openssl(names)
    made.authority.unlink(missing_ok=True)  # where it is, it fits the other
    write_private(made.broker, broker)
    write_whole(made.authority, authority, 0o644)
    return made


def _names(hosts: Iterable[str]) -> list[str]:
    """Those of the hosts that a client can dial, each as a certificate has it."""
    return [str(_address(host) or host.lower()) for host in hosts if host not in _NO_NAMES]


def _read(made: Certificates) -> tuple[list[str], float]:
    """Whom a certificate is for, and when it ends (wall s); nobody where somebody else made it.

    Python's ssl reads the certificate of a peer only: a handshake in memory.
    """
    import ssl

    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(made.broker, password="")  # ours has none; nobody is asked
        client.load_verify_locations(made.authority)
        client.check_hostname = False
        client.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
        reader = client.wrap_bio(back, there)
        for end in (reader, server.wrap_bio(there, back, server_side=True), reader):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        found: Any = reader.getpeercert()
    except (ssl.SSLError, ValueError):
        return [], 0
    if ("commonName", _AUTHORITY) not in itertools.chain(*found["issuer"]):
        return [], 0
    names = _names(name for _kind, name in found.get("subjectAltName", ()))
    return names, ssl.cert_time_to_seconds(found["notAfter"])


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _by_cryptography(names: list[str]) -> tuple[str, str]:
    """(certificate of the authority, key and certificate of the broker). Raises ImportError."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)])
    root_id = x509.SubjectKeyIdentifier.from_public_key(root_key.public_key())

    def signed(name: x509.Name, public: ec.EllipticCurvePublicKey, *more: object) -> str:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(root_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
        )
        for extension in more:
            assert isinstance(extension, x509.ExtensionType)
            is_critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical=is_critical)
        made = builder.sign(root_key, hashes.SHA256())
        return made.public_bytes(Encoding.PEM).decode("ascii")

    uses = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
         "key_agreement", "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    authority = signed(
        root_name,
        root_key.public_key(),
        x509.BasicConstraints(ca=True, path_length=0),
        x509.KeyUsage(key_cert_sign=True, crl_sign=True, **uses),
        root_id,
    )
    addresses = [(name, _address(name)) for name in names]
    own = signed(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _BROKER)]),
        key.public_key(),
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName(
            [x509.DNSName(n) if a is None else x509.IPAddress(a) for n, a in addresses]
        ),
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(root_id),
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return authority, private.decode("ascii") + own


def _by_openssl(names: list[str]) -> tuple[str, str]:
    """The same by the program. Raises BrokerError."""
    program = shutil.which("openssl")
    if program is None:
        raise BrokerError(
            "certificates need the package cryptography (pip install 'barnabas[tls]') or the"
            " program openssl: neither is there"
        )
    alternatives = ",".join(f"{'DNS' if _address(n) is None else 'IP'}:{n}" for n in names)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    config = "[req]\ndistinguished_name=dn\n[dn]\n"
    with tempfile.TemporaryDirectory(prefix="barnabas-ca-") as scratch:  # 0700
        folder = Path(scratch)
        (folder / "req.cnf").write_text(config)
        (folder / "own.ext").write_text(
            f"basicConstraints=critical,CA:FALSE\nsubjectAltName={alternatives}\n"
            "authorityKeyIdentifier=keyid\n"
        )
        for line in (
            ("req", "-x509", *key, "-config", "req.cnf", "-days", str(_DAYS),
             "-subj", f"/CN={_AUTHORITY}", "-keyout", "ca.key", "-out", "ca.pem",
             "-addext", "basicConstraints=critical,CA:TRUE,pathlen:0",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign",
             "-addext", "subjectKeyIdentifier=hash"),
            ("req", *key, "-config", "req.cnf", "-subj", f"/CN={_BROKER}",
             "-keyout", "own.key", "-out", "own.csr"),
            ("x509", "-req", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
             "-CAcreateserial", "-days", str(_DAYS), "-extfile", "own.ext", "-out", "own.pem"),
        ):  # fmt: skip
            done = subprocess.run(
                [program, *line], cwd=folder, env={**os.environ, "OPENSSL_CONF": os.devnull},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                why = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
                raise BrokerError(f"openssl {line[0]} failed: {why[0]}")
        own = (folder / "own.key").read_text("ascii") + (folder / "own.pem").read_text("ascii")
        return (folder / "ca.pem").read_text("ascii"), own
