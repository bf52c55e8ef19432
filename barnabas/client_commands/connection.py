"""How the client commands reach a cluster: the flags they share, clients, and errors for people."""

from __future__ import annotations

import argparse
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from server.commands.client_config import add_client_config, client_config
from server.commands.main import address_text, addresses, seconds
from server.commands.outcomes import EXIT_USAGE, UserError, add_json

if TYPE_CHECKING:
    from server.security.peer_security import PeerSecurity

BOOTSTRAP = "127.0.0.1:9092"
TOPIC_LIST = "`barnabas topic list` shows what is there"
_BYTES = ("filter", "header", "key", "key_separator")  # flags that tell what is in records
_CLIENT_ID = "barnabas-cli"
_NEXT_STEP = "is a broker running there? `barnabas start` starts one"
_NEXT_STEP_SECURED = "does the file of --client-config fit that listener?"


def add_flags(command: argparse.ArgumentParser, *, timeout_s: float = 10.0) -> None:
    """The flags that every client command has."""
    command.add_argument(
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        default=BOOTSTRAP,
        help=f"brokers to begin with, the first that answers is taken ({BOOTSTRAP})",
    )
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=timeout_s,
        help=f"how long to wait for an answer ({timeout_s:g})",
    )
    add_client_config(command)
    add_json(command)


def finish(command: argparse.ArgumentParser, run: Any) -> None:
    """A client command that has all its own flags gets the others, and what it runs."""
    add_flags(command)
    command.set_defaults(run=run)


def listening(bootstrap: str, timeout_s: float, security: PeerSecurity | None = None) -> list[str]:
    """Those of the addresses that take a connection, and a login, the first that does first.

    A client library tries for its whole timeout what a dial tells at once. Raises UserError, which
    says of each address what is wrong, when there is none.
    """
    failures = []
    is_anybody_there = False
    wanted = addresses(bootstrap)
    for index, (host, port) in enumerate(wanted):
        try:
            dial(host, port, timeout_s, security)
        except (OSError, UnicodeError) as error:
            failures.append(f"{host}:{port}: {dial_error(error)}")
            is_anybody_there |= not isinstance(error, ConnectionRefusedError)
        else:
            return [address_text(*address) for address in wanted[index:]]
    is_refused = security is not None and is_anybody_there
    next_step = _NEXT_STEP_SECURED if is_refused else _NEXT_STEP
    raise UserError(f"no broker at {'; '.join(failures)}; {next_step}")


def dial(host: str, port: int, timeout_s: float, security: PeerSecurity | None) -> None:
    """Connect, and with `security` log in. Raises OSError, UnicodeError."""
    if security is None:
        socket.create_connection((host, port), timeout_s).close()
        return
    from server.peers.blocking_peer import BlockingPeer
    from wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

    peer = BlockingPeer(host, port, _CLIENT_ID, timeout_s, security)
    with contextlib.closing(peer):
        peer.exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)


def dial_error(error: Exception) -> str:
    """Why an address could not be dialled, for people."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return "the name does not resolve"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What all clients of kafka-python are told. Raises UserError when nobody listens."""
    # Its warnings are about what we say in one line, or mend by trying again.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    _check_names(arguments)
    security = client_config(arguments)
    return {
        "bootstrap_servers": listening(arguments.bootstrap, arguments.timeout, security),
        "client_id": _CLIENT_ID,
        "bootstrap_timeout_ms": int(arguments.timeout * 1000),
        "reconnect_backoff_max_ms": 1000,
        **_secured(security),
    }


def _check_names(arguments: argparse.Namespace) -> None:
    """Raise UserError for a name that is no UTF-8: kafka-python waits for ever for its answer."""
    for flag, value in vars(arguments).items():
        if flag not in _BYTES:
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    utf8(text)


def utf8(text: str) -> str:
    """A name of the command line, which Kafka keeps as UTF-8. Raises UserError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{text!r}: expected a name in UTF-8", EXIT_USAGE) from None
    return text


def _secured(security: PeerSecurity | None) -> dict[str, Any]:
    """What kafka-python is told of a --client-config."""
    if security is None:
        return {}
    told: dict[str, Any] = {"security_protocol": security.protocol}
    if security.ssl_context is not None:
        told["ssl_context"] = security.ssl_context
        told["ssl_check_hostname"] = security.ssl_context.check_hostname
    if security.mechanism:
        told["sasl_mechanism"] = security.mechanism
        if security.token is not None:
            told["sasl_oauth_token_provider"] = _provider(security.token)
        else:
            told["sasl_plain_username"], told["sasl_plain_password"] = security.login
    return told


def _provider(token: Callable[[], str]) -> Any:
    """What kafka-python asks for tokens."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token()

    return Provider()


@contextlib.contextmanager
def admin_client(arguments: argparse.Namespace) -> Iterator[Any]:
    """A KafkaAdminClient, closed at the end. Failures inside become UserErrors."""
    from kafka import KafkaAdminClient

    config = settings(arguments)
    with (
        told(arguments),
        contextlib.closing(
            KafkaAdminClient(request_timeout_ms=int(arguments.timeout * 1000), **config)
        ) as client,
    ):
        yield client


@contextlib.contextmanager
def told(arguments: argparse.Namespace) -> Iterator[None]:
    """Turn what kafka-python raises into one line with the next step."""
    from kafka import errors

    try:
        yield
    except errors.BrokerResponseError as error:
        raise UserError(f"{error.message}: {plain(error.description)}") from None
    except errors.KafkaError as error:
        where = f"the cluster at {arguments.bootstrap}"
        if not error.retriable:
            raise UserError(f"{where} cannot be used: {plain(str(error))}") from None
        if isinstance(error, errors.KafkaConnectionError):  # at once, of whichever node was tried
            raise UserError(
                f"a node of {where} cannot be reached ({plain(str(error))});"
                f" `barnabas doctor --bootstrap {arguments.bootstrap}` says which"
            ) from None
        raise no_answer(arguments) from None


def no_answer(arguments: argparse.Namespace) -> UserError:
    """What is told of a cluster that was waited for in vain."""
    return UserError(
        f"no answer from the cluster at {arguments.bootstrap} within {arguments.timeout:g} s;"
        f" `barnabas doctor --bootstrap {arguments.bootstrap}` looks for the reason"
    )


def refuse(code: int, detail: str | None, what: str, next_step: str = "") -> None:
    """Raise a UserError when an answer carries an error code."""
    if code == 0:
        return
    from kafka import errors

    error = errors.for_code(code)
    said = plain(detail or error.description or "")
    raise UserError(f"{what}: {error.message}: {said}{'; ' if next_step else ''}{next_step}")


def plain(text: str | None) -> str:
    """A sentence of somebody else's, as a part of ours."""
    return " ".join((text or "").split()).rstrip(".")


def key_values(pairs: list[str], flag: str) -> dict[str, str]:
    """KEY=VALUE pairs of a flag that may be given again. Raises UserError."""
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{flag} {pair!r}: expected KEY=VALUE", EXIT_USAGE)
        values[key.strip()] = value
    return values


def count(text: str, at_least: int = 1) -> int:
    """The type of flags that count something."""
    if not (text.isascii() and text.isdigit() and at_least <= int(text) <= 2**31 - 1):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, at least {at_least}")
    return int(text)
