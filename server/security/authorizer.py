"""Who decides what somebody may do: `authorizer.class.name` (Kafka: Authorizer, KIP-801).

    org.apache.kafka.metadata.authorizer.StandardAuthorizer   `StandardAuthorizer` below
    module:Class, or package.module.Class                     a Python class of the operator's
    empty                                                     nobody: everything is allowed
    anything else                                             refuses the start

A Python class has, of `Authorizer`, at least `authorize`; it is made without arguments, and its
`configure(configs)`, if it has one, is called with the node's own properties. What it lacks is
refused: `authorize_some` says no, and what it raises is no as well. It is asked from several
threads.

`StandardAuthorizer` answers from the access rules of the metadata image. What is asked is a tuple
in a dictionary most of the time: answers are remembered with the table of rules they were made
from, and thrown away with it. Until this node has read all that the quorum had committed, only
`super.users` pass (`NotReady`): rules of yesterday may have been taken back since.
Budget: a remembered answer 0.4 µs, one of 10,000 rules that is not remembered 10 µs; a request
with the questions it takes 3 us more (benchmarks/micro/guards.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from server.config.kafka_config import ConfigError
from server.security.acls import AclTable, canonical_host
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.metadata.image import MetadataDelta, MetadataImage
    from server.config.kafka_config import KafkaConfig

logger = logging.getLogger(__name__)

CLASS_NAME = "authorizer.class.name"
SUPER_USERS = "super.users"
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_REMEMBERED_MAX = 65_536
_NAME_REMEMBERED_MAX = 256
"""Names are the clients' choice: neither many of them nor long ones are kept."""

_Asked = tuple[str, str, int, int, "str | None"]
"""Principal, host, operation, resource type, name; None: on at least one."""


class Authorizer(Protocol):
    """Says yes or no. `principal` is "User:alice", `host` the address of the peer as text;
    `operation` and `resource_type` are the numbers of AclOperation and ResourceType."""

    keeps_acls: bool
    """Whether it goes by the rules of the metadata log, which Create- and DeleteAcls change."""

    def authorize(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool: ...

    def authorize_some(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """On at least one resource of the type, whichever there are."""


class NotReady(KafkaError):
    """The rules are not loaded yet (Kafka: AuthorizerNotReadyException)."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the authorizer has not loaded its rules yet"
        )


class _Loaded(NamedTuple):
    """Rules, and what was answered by them."""

    source: Mapping[bytes, Any]
    table: AclTable
    answers: dict[_Asked, bool]


class StandardAuthorizer:
    """See the module. `publish` on the loader's thread; questions from any."""

    keeps_acls = True

    def __init__(
        self,
        super_users: Iterable[str] = (),
        *,
        allow_everyone: bool = False,
        is_caught_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_caught_up`: is all published that the quorum had committed at the start."""
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self._is_caught_up = is_caught_up
        self._is_complete = False
        self._loaded: _Loaded | None = None

    def authorize(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Raises NotReady before the rules are here."""
        return self._answer((principal, host, operation, resource_type, name))

    def authorize_some(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Raises NotReady before the rules are here."""
        return self._answer((principal, host, operation, resource_type, None))

    def _answer(self, asked: _Asked) -> bool:
        if asked[0] in self._super_users:
            return True
        loaded = self._loaded
        if loaded is None:
            raise NotReady
        answer = loaded.answers.get(asked)
        return self._decide(loaded, asked) if answer is None else answer

    def _decide(self, loaded: _Loaded, asked: _Asked) -> bool:
        principal, host, operation, resource_type, name = asked
        host = canonical_host(host)
        if_no_acl = self._allow_everyone
        if name is None:
            answer = loaded.table.allows_some(
                principal, host, operation, resource_type, if_no_acl=if_no_acl
            )
        else:
            answer = loaded.table.allows(
                principal, host, operation, resource_type, name, if_no_acl=if_no_acl
            )
        if len(loaded.answers) >= _REMEMBERED_MAX:
            loaded.answers.clear()
        if name is None or len(name) <= _NAME_REMEMBERED_MAX:
            loaded.answers[asked] = answer
        return answer

    # -- the rules

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Go by the rules of this image from now on. If that fails, nobody passes."""
        before = self._loaded
        try:
            if self._awaits(image.offset):
                return
            if before is None or before.source is not image.acls:
                self._loaded = _Loaded(image.acls, _table(before, delta, image), {})
        except BaseException:
            self._loaded = None
            raise

    def _awaits(self, offset: int) -> bool:
        """Is something on its way that was committed before this node started."""
        if self._is_complete:
            return False
        if not self._is_caught_up():
            return True
        self._is_complete = True
        logger.info("authorizer has loaded its rules offset=%s", offset)
        return False


def _table(before: _Loaded | None, delta: MetadataDelta, image: MetadataImage) -> AclTable:
    if before is None or before.source is not delta.image.acls:
        return AclTable(image.acls.values())
    changed = delta.changed["acls"]
    removed = [before.source[key] for key in changed if key in before.source]
    added = [image.acls[key] for key in changed if key in image.acls]
    return before.table.updated(removed, added)


class _Custom:
    """An operator's class, held to what `Authorizer` promises."""

    keeps_acls = False

    def __init__(self, decides: Any) -> None:
        self._authorize = decides.authorize
        self._authorize_some = getattr(decides, "authorize_some", None)

    def authorize(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        return self._ask(self._authorize, principal, host, operation, resource_type, name)

    def authorize_some(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        if self._authorize_some is None:
            return False
        return self._ask(self._authorize_some, principal, host, operation, resource_type)

    @staticmethod
    def _ask(ask: Callable[..., Any], *question: object) -> bool:
        try:
            return ask(*question) is True
        except Exception:
            logger.exception("authorizer failed and is taken to refuse question=%r", question)
            return False


def read_super_users(text: str) -> list[str]:
    """`User:alice;User:CN=bob,O=x`: split at `;`. Raises ConfigError."""
    users = [user.strip() for user in text.split(";")]
    users = [user for user in users if user]
    for user in users:
        kind, colon, _ = user.partition(":")
        if not colon or not kind:
            raise ConfigError(
                SUPER_USERS, text, f"expected Type:name, separated by semicolons, not {user!r}"
            )
    return users


def load_authorizer(
    config: KafkaConfig, is_caught_up: Callable[[], bool]
) -> StandardAuthorizer | _Custom | None:
    """The authorizer that the configuration names, or None. Raises ConfigError."""
    super_users = read_super_users(config.static.get(SUPER_USERS, ""))
    everyone = config.static.get(ALLOW_EVERYONE, "false").strip().lower()
    if everyone not in ("true", "false"):
        raise ConfigError(ALLOW_EVERYONE, everyone, "expected true or false")
    name = config.get_str(CLASS_NAME).strip()
    if not name:
        for key in (SUPER_USERS, ALLOW_EVERYONE):
            if key in config.static:
                raise ConfigError(
                    key, config.static[key], f"means nothing without {CLASS_NAME} ({STANDARD})"
                )
        return None
    if name == STANDARD:
        return StandardAuthorizer(
            super_users, allow_everyone=everyone == "true", is_caught_up=is_caught_up
        )
    return _Custom(_made(name, config.static))


def _made(name: str, configs: Mapping[str, str]) -> Any:
    """An object of the operator's class. Raises ConfigError."""
    expected = f"expected {STANDARD}, or a Python class as module:Class or package.module.Class"
    module, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    try:
        made: Any = getattr(import_module(module), attribute)()
        if not callable(made.authorize):
            raise TypeError("its authorize cannot be called")
        if hasattr(made, "configure"):
            made.configure(dict(configs))
    except Exception as error:
        raise ConfigError(CLASS_NAME, name, f"{expected}: {error}") from error
    return made
