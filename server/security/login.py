"""Where SASL's secrets stand: JAAS configurations of listeners, mechanisms and clients.

For a server (JaasContext, LN-3): `listener.name.X.<mechanism>.sasl.jaas.config`; else the section
`x.KafkaServer` of the JAAS file, else `KafkaServer`. The file is what KAFKA_OPTS names, as compose
files have it (`-Djava.security.auth.login.config=FILE`, LN-4). A bare `sasl.jaas.config` says
nothing to a server. Its own side as a client (`username`, `password`) stands in the same entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from server.config.kafka_config import ConfigError, ListenerConfig, catalogue
from server.config.secret_files import warn_of_others
from server.security.jaas import JaasError, LoginModule, parse_jaas, parse_jaas_file
from server.security.sasl.mechanisms import PLAIN
from server.security.sasl.oauthbearer import OAUTHBEARER
from server.security.sasl.scram import HASHES

JAAS = "sasl.jaas.config"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MODULES: Mapping[str, str] = {
    PLAIN: _PLAIN_MODULE,
    **dict.fromkeys(HASHES, _SCRAM_MODULE),
    OAUTHBEARER: _OAUTH_MODULE,
}
"""The mechanisms there are, and the login module of each."""
_FILE_OPTION = re.compile(
    r"""-Djava\.security\.auth\.login\.config=(?:"([^"]*)"|'([^']*)'|(\S+))"""
)
_OPTS = "KAFKA_OPTS"


def check_module(module: LoginModule, mechanism: str, name: str) -> LoginModule:
    """Is it the module of the mechanism? Raises ConfigError naming the key."""
    if module.name != MODULES[mechanism]:
        raise ConfigError(name, None, f"expected {MODULES[mechanism]} for {mechanism}")
    return module


def server_login(values: ListenerConfig, listener_name: str, mechanism: str) -> LoginModule:
    """The login module of a listener's mechanism. Raises ConfigError."""
    key = f"{values.prefix}{mechanism.lower()}.{JAAS}"
    text = values.config.given(key)
    if text is not None:
        try:
            return check_module(parse_jaas(text), mechanism, key)
        except JaasError as error:
            raise ConfigError(key, None, str(error)) from None
    sections = _jaas_file()
    for section in (f"{listener_name.lower()}.KafkaServer", "KafkaServer"):
        modules = [m for m in sections.get(section, ()) if m.name == MODULES[mechanism]]
        if modules:
            return modules[0]
    raise ConfigError(
        key,
        None,
        f"expected such as {MODULES[mechanism]} required ...;"
        " (a bare sasl.jaas.config means nothing to a server)",
    )


def _jaas_file() -> Mapping[str, list[LoginModule]]:
    found = _FILE_OPTION.search(os.environ.get(_OPTS, ""))
    if found is None:
        return {}
    path = found[1] or found[2] or found[3]
    try:
        with Path(path).open(encoding="utf-8") as file:
            warn_of_others(path, file.fileno())
            return parse_jaas_file(file.read())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(_OPTS, None, f"the JAAS file {path} cannot be read: {why}") from None
    except JaasError as error:
        raise ConfigError(_OPTS, None, f"the JAAS file {path}: {error}") from None


def plain_users(module: LoginModule) -> dict[str, str]:
    """`user_NAME="password"` of a PlainLoginModule."""
    return {
        key.removeprefix("user_"): value
        for key, value in module.options.items()
        if key.startswith("user_")
    }


class ClientProperties:
    """The ssl.* and sasl.* keys of a client's file."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def text(self, name: str) -> str:
        return self._properties.get(name, catalogue().broker[name].default or "").strip()

    def get_list(self, name: str) -> list[str]:
        return [item.strip() for item in self.text(name).split(",") if item.strip()]

    def error(self, name: str, expected: str) -> ConfigError:
        return ConfigError(name, self._properties.get(name), expected)
