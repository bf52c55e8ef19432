"""How a delegation token logs in: by SCRAM, its id for a name and its secret for a password (DT-4).

The log holds no secret (DT-3): each node derives it by `delegation.token.secret.key`, and from it
what SCRAM keeps of a password. That takes the 4,096 rounds of any password once for each token and
mechanism, when it is first used here; an id is random, so only who was given it brings that about.
A token that has ended opens nothing, whether the controller has taken it out of the log or not.
"""

from __future__ import annotations

import base64
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping

from replication.controller.delegation_tokens import has_ended, token_hmac
from replication.controller.scram import ITERATIONS_MIN, MECHANISMS, scram_record
from server.security.sasl.scram import (
    ScramCredential,
    TokenCredential,
    salt_of,
    salted_password,
)
from wire.messages.metadata_records import DelegationTokenRecord

_KEPT_MAX = 10_000
_USER = "User:"


class DelegationTokens:
    """The tokens of the metadata log as who logs in. On the threads of the network."""

    def __init__(
        self,
        secret_key: str,
        tokens: Callable[[], Mapping[str, DelegationTokenRecord]],
        wall_ms: Callable[[], int],
    ) -> None:
        """`tokens`: those there are now, by id."""
        self._secret_key = secret_key
        self._tokens = tokens
        self._wall_ms = wall_ms
        self._kept: OrderedDict[tuple[str, str], ScramCredential] = OrderedDict()

    def credential(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """What logs in by the token; None if nobody does."""
        token, now_ms = self._tokens().get(token_id), self._wall_ms()
        if token is None or has_ended(token, now_ms) or not token.owner.startswith(_USER):
            return None
        left_ms = min(token.expiration_timestamp, token.max_timestamp) - now_ms
        owner = token.owner.removeprefix(_USER)
        return TokenCredential(self._derived(mechanism, token_id), owner, left_ms)

    def _derived(self, mechanism: str, token_id: str) -> ScramCredential:
        known = self._kept.get((mechanism, token_id))
        if known is not None:
            return known
        password = base64.b64encode(token_hmac(self._secret_key, token_id)).decode()
        salt = salt_of(secrets.token_bytes())
        salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
        made = scram_record(token_id, MECHANISMS[mechanism], salted, salt, ITERATIONS_MIN)
        credential = ScramCredential(salt, made.stored_key, made.server_key, ITERATIONS_MIN)
        self._kept[mechanism, token_id] = credential
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return credential
