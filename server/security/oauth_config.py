"""OAUTHBEARER as Kafka's keys describe it: what a listener makes of tokens, and whose a node sends.

A listener's tokens are signed ones (OAuthBearerValidatorCallbackHandler, or nothing more than
`sasl.oauthbearer.jwks.endpoint.url`), or unsecured ones, where the operator says so: by naming
OAuthBearerUnsecuredValidatorCallbackHandler, or by its options in the JAAS entry. Kafka's default
is the unsecured one; with nothing said it is refused here (OA-3), as is a listener that names both.

A client's token stands in a file (`sasl.oauthbearer.token.endpoint.url=file:///...`), read anew for
each login, or is an unsecured one made of `unsecuredLogin*` options.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from server.config.kafka_config import ConfigError, ListenerConfig
from server.config.secret_files import warn_of_others
from server.security.jaas import LoginModule
from server.security.login import ClientProperties
from server.security.sasl.oauthbearer import OAUTHBEARER, Validate
from server.security.tokens import (
    TOKEN_MAX,
    Expected,
    SignedTokens,
    UnsecuredTokens,
    unsecured_token,
)

if TYPE_CHECKING:
    from ssl import SSLContext

    from server.security.jwks import Jwks

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_SIGNED_HANDLERS = tuple(
    f"{_PACKAGE}{room}.OAuthBearerValidatorCallbackHandler" for room in ("", ".secured")
)
_UNSECURED = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_VALIDATORS = tuple(f"{_PACKAGE}.{name}" for name in ("DefaultJwtValidator", "BrokerJwtValidator"))
_RETRIEVERS = tuple(f"{_PACKAGE}.{name}" for name in ("DefaultJwtRetriever", "FileJwtRetriever"))
CLASSES: Mapping[str, tuple[str, ...]] = {
    "sasl.server.callback.handler.class": (*_SIGNED_HANDLERS, _UNSECURED),
    "sasl.login.callback.handler.class": (
        f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
        f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
        f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
    ),
}
"""Handlers that may be named for the mechanism."""
_HANDLER = "sasl.server.callback.handler.class"
_JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
_OPTION = "unsecuredValidator"
_NAMES = ("PrincipalClaimName", "ScopeClaimName", "RequiredScope")
_SKEW = f"{_OPTION}AllowableClockSkewMs"
_OPTIONS = {_SKEW, *(_OPTION + name for name in _NAMES)}
_CLAIM = "unsecuredLogin"
_LIFETIME_S = 3600


class Tokens(NamedTuple):
    """What a listener makes of tokens."""

    validate: Validate
    keys: Jwks | None
    """None where nothing is signed."""


def listener_tokens(
    values: ListenerConfig, module: LoginModule, now_s: Callable[[], float] = time.time
) -> Tokens:
    """Reads the keys, too. Raises ConfigError."""
    handler = values.text(_HANDLER, OAUTHBEARER)
    url = values.text(_JWKS_URL, OAUTHBEARER)
    options = {name: text for name, text in module.options.items() if name.startswith(_OPTION)}
    if unknown := sorted(options.keys() - _OPTIONS):
        raise values.error(_HANDLER, f"there is no option {unknown[0]}", OAUTHBEARER)
    if not options and (handler in _SIGNED_HANDLERS or (url and not handler)):
        return _signed(values, module, url, now_s)
    if url or handler in _SIGNED_HANDLERS or (not handler and not options):
        raise values.error(
            _HANDLER,
            f"expected {_SIGNED_HANDLERS[0]} with {_JWKS_URL}; or, for tokens that anybody can"
            f" write, {_UNSECURED} without it",
            OAUTHBEARER,
        )
    return Tokens(_unsecured(values, options, now_s), None)


def _signed(
    values: ListenerConfig, module: LoginModule, url: str, now_s: Callable[[], float]
) -> Tokens:
    if not url:
        raise values.error(_JWKS_URL, f"expected where the keys of tokens are: {_HANDLER} needs it")
    name = "sasl.oauthbearer.jwt.validator.class"
    if values.text(name, OAUTHBEARER) not in _VALIDATORS:
        raise values.error(name, "there is no such class here", OAUTHBEARER)
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise values.error(
            _JWKS_URL, "signed tokens need joserfc: pip install 'barnabas[oauth]'", OAUTHBEARER
        ) from None
    from server.security.jwks import Jwks, JwksError, Source

    known = "sasl.oauthbearer.jwks.endpoint."
    times = {
        ours: max(least, values.get_int(known + name, OAUTHBEARER))
        for ours, name, least in (
            ("refresh", "refresh.ms", 1000),
            ("backoff", "retry.backoff.ms", 100),
            ("backoff_max", "retry.backoff.max.ms", 100),
        )
    }
    try:
        source = Source(url, partial(_context, module))
        keys = Jwks(source, times, lambda: int(time.monotonic() * 1000))
        keys.load()
    except JwksError as error:  # without the URL: a password may stand in it
        raise ConfigError(values.key(_JWKS_URL, OAUTHBEARER), None, str(error)) from None
    text = values.text
    expected = Expected(
        tuple(filter(None, map(str.strip, text(_AUDIENCE, OAUTHBEARER).split(",")))),
        text("sasl.oauthbearer.expected.issuer", OAUTHBEARER),
        max(0, values.get_int("sasl.oauthbearer.clock.skew.seconds", OAUTHBEARER)),
        text("sasl.oauthbearer.sub.claim.name", OAUTHBEARER),
        text("sasl.oauthbearer.scope.claim.name", OAUTHBEARER),
    )
    return Tokens(SignedTokens(keys, expected, now_s), keys)


_AUDIENCE = "sasl.oauthbearer.expected.audience"


def _context(module: LoginModule) -> SSLContext:
    """Whom to believe on the way to the keys: ssl.* options of the JAAS entry, as in Kafka."""
    from server.security.tls import client_tls

    return client_tls(ClientProperties(module.options)).context


def _unsecured(
    values: ListenerConfig, options: Mapping[str, str], now_s: Callable[[], float]
) -> Validate:
    given = {name: options.get(_OPTION + name, "").strip() for name in _NAMES}
    skew = options.get(_SKEW, "0").strip()
    if not skew.isdecimal() or len(skew) > 9:
        raise values.error(_HANDLER, f"expected milliseconds for {_SKEW}", OAUTHBEARER)
    return UnsecuredTokens(
        now_s,
        given["PrincipalClaimName"] or "sub",
        given["ScopeClaimName"] or "scope",
        given["RequiredScope"].split(),
        int(skew),
    )


class _Text(Protocol):
    def __call__(self, name: str) -> str: ...


def token_source(text: _Text, module: LoginModule, key: str) -> Callable[[], str]:
    """Where a client has its tokens from. `text`: of a key; `key`: that `module` stands in.

    Raises ConfigError; what is given back raises OSError or ValueError.
    """
    url, retriever = text(_TOKEN_URL), "sasl.oauthbearer.jwt.retriever.class"
    if text(retriever) not in _RETRIEVERS:
        raise ConfigError(retriever, text(retriever), "there is no such class here")
    if url:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigError(_TOKEN_URL, None, "expected file:///... : tokens are not fetched")
        return partial(_read_token, Path(unquote(parts.path)))
    if not any(name.startswith(_CLAIM) for name in module.options):
        raise ConfigError(key, None, f"expected {_TOKEN_URL}, or options {_CLAIM}StringClaim_sub")
    return partial(_made_token, _claims(module, key), _lifetime_s(module, key))


def _read_token(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        warn_of_others(path, file.fileno())
        return file.read(TOKEN_MAX).strip()


def _made_token(claims: Mapping[str, object], lifetime_s: int) -> str:
    now = int(time.time())
    return unsecured_token({"iat": now, "exp": now + lifetime_s, **claims})


def _lifetime_s(module: LoginModule, key: str) -> int:
    text = module.options.get(f"{_CLAIM}LifetimeSeconds", str(_LIFETIME_S)).strip()
    if not text.isdecimal() or not 0 < len(text) < 10:
        raise ConfigError(key, None, f"expected seconds for {_CLAIM}LifetimeSeconds")
    return int(text)


def _claims(module: LoginModule, key: str) -> dict[str, object]:
    """`unsecuredLoginStringClaim_x`, `...NumberClaim_x` and `...ListClaim_x`, whose text begins
    with what separates the items."""
    claims: dict[str, object] = {}
    for option, text in module.options.items():
        kind, _, name = option.removeprefix(_CLAIM).partition("Claim_")
        if not option.startswith(_CLAIM) or not name:
            continue
        if kind == "String":
            claims[name] = text
        elif kind == "List":
            claims[name] = text[1:].split(text[:1]) if text[1:] else []
        elif kind == "Number":
            try:
                claims[name] = float(text)
            except ValueError:
                raise ConfigError(key, None, f"expected a number for {option}") from None
    return claims
