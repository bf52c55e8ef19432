"""Tokens of OAUTHBEARER for the clients of tasks, as Kafka's Java client is told of them.

As for nodes and commands: a token stands in a file (`sasl.oauthbearer.token.endpoint.url=file:///...`)
that each executor has, too, and is read anew for each login; or it is an unsecured one, made of the
claims in the JAAS entry (`unsecuredLoginStringClaim_sub`), which proves nothing (KIP-255). Who has
librdkafka fetch its tokens says so in librdkafka's words (`sasl.oauthbearer.method=oidc`, and no
JAAS entry), which are left to it.

Travels to executors by value.
"""

from __future__ import annotations

import base64
import json
import re
import time
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from .registers import SinkError

OAUTHBEARER = "OAUTHBEARER"
JAAS = "sasl.jaas.config"
_URL = "sasl.oauthbearer.token.endpoint.url"
_OPTION = re.compile(r'\b(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_CLAIM = "unsecuredLoginStringClaim_"
_LIFETIME = "unsecuredLoginLifetimeSeconds"


class Token(NamedTuple):
    """Where a token comes from: a file, or what an unsecured one says."""

    path: str
    claims: dict[str, str]
    lifetime_s: int = 3600

    def __call__(self) -> str:
        """A token that is good now. Raises SinkError."""
        if not self.path:
            now = int(time.time())
            said = {"iat": now, "exp": now + self.lifetime_s, **self.claims}
            return ".".join([_encoded({"alg": "none"}), _encoded(said), ""])
        try:
            with open(self.path, encoding="utf-8") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SinkError(f"no token in {self.path} ({_URL}): {error}") from None

    def with_expiry(self, _config: object = None) -> tuple[str, float]:
        """It, and when it ends in seconds since 1970, as librdkafka wants it. Raises SinkError."""
        token = self()
        try:
            part = token.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
            return token, float(claims["exp"])
        except (ValueError, LookupError, TypeError):
            where = self.path or JAAS
            raise SinkError(f"what should be a token in {where} is none, or never ends") from None


def take_token(properties: dict[str, str]) -> Token | None:
    """What the properties say of tokens, taken out of them; None if nothing is for us to do.

    Raises SinkError.
    """
    mechanism = properties.get("sasl.mechanism", properties.get("sasl.mechanisms", ""))
    if mechanism.upper() != OAUTHBEARER or JAAS not in properties:
        return None
    jaas = properties.pop(JAAS)
    url = urlsplit(properties.get(_URL, ""))
    for key in [key for key in properties if key.startswith(("sasl.oauthbearer.", "sasl.login."))]:
        del properties[key]
    if url.scheme == "file":
        return Token(unquote(url.path), {})
    if url.scheme:
        raise SinkError(
            f"{_URL} is {url.geturl()!r}; expected file:///... : the executors' clients fetch no"
            " tokens so (librdkafka does, told by its own sasl.oauthbearer.method=oidc)"
        )
    options = {name: text or bare for name, text, bare in _OPTION.findall(jaas)}
    claims = {
        name.removeprefix(_CLAIM): re.sub(r"\\(.)", r"\1", text)
        for name, text in options.items()
        if name.startswith(_CLAIM)
    }
    lifetime = options.get(_LIFETIME, "3600")
    if not claims or not lifetime.isdecimal():
        raise SinkError(f"expected {_URL} (file:///...), or {_CLAIM}sub in {JAAS}")
    return Token("", claims, int(lifetime))


def _encoded(said: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()
