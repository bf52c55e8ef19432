"""`barnabas start --secure [DIR]`: a broker with TLS and one user, in one command.

DIR (./barnabas-secure) holds what was made at the first start, and is used again at the next,
but for certificates that are used up, or not for the host of `--listen`: they are made anew:

    ca.pem              what clients trust
    broker.pem          the broker's key and certificate (0600)
    server.properties   the broker's security keys, with the user's password (0600)
    client.properties   how to connect: `--client-config` here, `--command-config` of Kafka's (0600)

The user is `client`, by PLAIN; the password is random and stands in those two files only.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from barnabas.authority import certificates
from barnabas.process import BrokerError, properties_text, write_private
from barnabas.secured import PROTOCOL, Security, java_properties

USER = "client"
_DEFAULT_LISTEN = "127.0.0.1:9092"


def new_users() -> dict[str, str]:
    """The one user, and a password that nobody guesses."""
    return {USER: secrets.token_urlsafe(24)}


def prepare(directory: Path, host: str, given: Mapping[str, str]) -> Path:
    """Make what is not there; returns the file for `--config`. Raises BrokerError, OSError.

    `given`: the properties from elsewhere, none of which may say where to listen or by whom.
    """
    try:
        Security.of(PROTOCOL, {USER: "-"}, None, given)
    except ValueError as error:
        raise BrokerError(str(error).replace("security=", "--secure")) from None
    directory = directory.absolute()
    server, client = directory / "server.properties", directory / "client.properties"
    before = _bytes(directory / "ca.pem")
    made = certificates(directory, [host], [socket.gethostname()])
    if before not in (b"", _bytes(made.authority)):
        print(
            f"barnabas: {made.broker} was made again, for {host} and a year: clients elsewhere"
            f" need the new {made.authority.name}",
            file=sys.stderr,
        )
    if not (server.exists() and client.exists()):
        users = new_users()
        security = Security(users, None)
        security.prepare(directory)
        write_private(
            client, properties_text(java_properties(USER, users[USER], str(made.authority)))
        )
        write_private(server, properties_text(security.properties(PROTOCOL)))
    return server


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def start(arguments: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Prepare, and `run` what `start` is with it."""
    from server.commands.main import address_text, host_port, properties
    from server.commands.outcomes import UserError
    from server.config.environment import read_environment

    listen = arguments.listen or _DEFAULT_LISTEN
    host, port = host_port(listen)
    arguments.listen = None
    environment = read_environment(os.environ if arguments.env else {})
    with environment.named_in_errors():
        given = properties(arguments, environment)
    try:
        arguments.config.append(prepare(arguments.secure, host, given))
    except BrokerError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{error.filename or arguments.secure}: {error.strerror}") from None
    arguments.client_file = arguments.secure / "client.properties"
    arguments.set.append(f"listeners={PROTOCOL}://{address_text(host, port)}")
    return run(arguments)
