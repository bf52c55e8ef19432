"""From a certificate to a principal: subjects as Java writes them, and the mapping rules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from server.security.certificates import CertificateError, read_certificate
from server.security.principal_mapping import principal_mapper

KEY = ec.generate_private_key(ec.SECP256R1())
Name = list[list[tuple[ObjectIdentifier, str]]]
CN = NameOID.COMMON_NAME


def certificate(name: Name) -> bytes:
    rdns = [
        x509.RelativeDistinguishedName([x509.NameAttribute(oid, text) for oid, text in rdn])
        for rdn in name
    ]
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(CN, "ca")]),
        subject_name=x509.Name(rdns),
        public_key=KEY.public_key(),
        serial_number=1,
        not_valid_before=datetime(2026, 1, 1),
        not_valid_after=datetime(2051, 1, 1),
    )
    names = x509.SubjectAlternativeName([x509.DNSName("a.example")])
    signed = builder.add_extension(names, critical=False).sign(KEY, hashes.SHA256())
    return signed.public_bytes(Encoding.DER)


# What Java 17 says: X500Principal.getName().
SUBJECTS: list[tuple[Name, str]] = [
    (
        [
            [(NameOID.COUNTRY_NAME, "DE")],
            [(NameOID.ORGANIZATION_NAME, "Müller + Söhne")],
            [(CN, "Jörg")],
        ],
        r"CN=Jörg,O=Müller \+ Söhne,C=DE",
    ),
    ([[(CN, "#x")]], r"CN=\#x"),
    ([[(CN, " a ")]], "CN=\\ a\\ "),
    ([[(CN, 'a=b,c+d"e\\f<g>h;i')]], r"CN=a\=b\,c\+d\"e\\f\<g\>h\;i"),
    (
        [[(NameOID.EMAIL_ADDRESS, "a@b.c")], [(CN, "m")]],
        "CN=m,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    (
        [
            [(NameOID.DOMAIN_COMPONENT, "org")],
            [(NameOID.DOMAIN_COMPONENT, "example")],
            [(NameOID.USER_ID, "u1")],
        ],
        "UID=u1,DC=example,DC=org",
    ),
    ([[(CN, "x"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "y")]], "CN=x+OU=y"),
    (
        [
            [(NameOID.STATE_OR_PROVINCE_NAME, "S")],
            [(NameOID.LOCALITY_NAME, "L")],
            [(NameOID.STREET_ADDRESS, "1 Road")],
            [(NameOID.SERIAL_NUMBER, "42")],
        ],
        "2.5.4.5=#13023432,STREET=1 Road,L=L,ST=S",
    ),
    ([[(CN, "a  b")]], "CN=a  b"),
    ([[(CN, "日本")]], "CN=日本"),
    ([[(CN, "a#b")]], r"CN=a\#b"),
    ([[(CN, "a/b:c")]], "CN=a/b:c"),
]


@pytest.mark.parametrize(("name", "expected"), SUBJECTS, ids=[text for _, text in SUBJECTS])
def test_subjects_are_written_as_java_does(name: Name, expected: str) -> None:
    read = read_certificate(certificate(name))
    assert read.subject == expected
    assert read.not_after == datetime(2051, 1, 1, tzinfo=UTC)
    assert len(read.alternative_names) == 1


def test_what_is_no_certificate_is_refused_whatever_it_is() -> None:
    whole = certificate([[(CN, "x")]])
    for cut in range(0, len(whole), 7):
        with pytest.raises(CertificateError):
            read_certificate(whole[:cut])


RULES = r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org", "Duke"),
        (RULES, "OU=x,cn=Kafka.Client", "kafka.client"),
        (RULES, "OU=x", "OU=x"),
        ("RULE:CN=(.*)/$1/U", "CN=ab", "AB"),
        ("RULE:CN=(.*)/$1/U", "CN=ab,O=c", "AB,O=C"),
        ("RULE:CN=b/x/", "CN=a", None),
        (r"RULE:CN=(a)/$12/", "CN=a", "a2"),
        (r"RULE:CN=(?<n>a),O=(b)/$2\/${n}/", "CN=a,O=b", "b/a"),
        (r" RULE:CN=(\w+)\,O=.*/$1/ , DEFAULT", "CN=a,O=b", "a"),
        (r"RULE:CN=(\w+)/$1/", "CN=jürgen", None),  # Java's \w and \d are ASCII
        (r"RULE:CN=node(\d+)/$1/", "CN=node\u0661", None),
        (r"RULE:(?i)CN=kelvin/k/", "CN=\u212aelvin", None),
    ],
)
def test_the_first_rule_that_fits_the_whole_subject_wins(
    rules: str, subject: str, name: str | None
) -> None:
    assert principal_mapper(rules)(subject) == name


@pytest.mark.parametrize(
    "rules",
    ["RULE:a", "RULE:(/b/", "RULE:a/b", "default", r"RULE:\p{Lu}/x/", "RULE:a/${n}/", "RULE:a/b/X"],
)
def test_rules_that_nobody_can_obey_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"expected|pattern"):
        principal_mapper(rules)
