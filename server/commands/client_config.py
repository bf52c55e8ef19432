"""`--client-config FILE`: how a command reaches brokers that are not PLAINTEXT.

The file has the Java client's property names (security.protocol, sasl.mechanism, sasl.jaas.config,
ssl.truststore.location, ...), as `--command-config` of Kafka's own tools takes it.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from server.config.kafka_config import load_properties

if TYPE_CHECKING:
    from server.security.peer_security import PeerSecurity


def add_client_config(command: argparse.ArgumentParser) -> None:
    """Add the flag."""
    command.add_argument(
        "--client-config",
        metavar="FILE",
        type=Path,
        help="properties of Kafka's Java client that say how to connect (security.protocol, ...)",
    )


def client_config(arguments: argparse.Namespace) -> PeerSecurity | None:
    """What the file says; None without one, or for PLAINTEXT. Raises ConfigError."""
    path: Path | None = arguments.client_config
    return None if path is None else _read(path)


@functools.cache
def _read(path: Path) -> PeerSecurity | None:
    """Once, and so one warning."""
    from server.security.peer_security import client_security

    return client_security(load_properties(path))
