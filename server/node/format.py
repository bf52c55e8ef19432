"""`barnabas format`: makes log directories a node's own, before its first start (Kafka: Formatter).

Why a command of its own: what is decided here must be the same on every node and is decided once:
the cluster id, the features a new cluster starts with, and with a dynamic quorum (kraft.version 1,
KIP-853) its first voters. A node alone decides that itself at its first start.

What is written, readable by Apache Kafka's tools and nodes, and theirs by us:

    <each dir>/bootstrap.checkpoint   the features, users' SCRAM credentials and access rules, for
                                      the first active controller; 0600 where there are some
    <metadata dir>/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint
                                      kraft.version and the first voters, where they are named
    <each dir>/meta.properties        cluster, node, directory id; last, so that a directory is
                                      formatted or not
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from replication.controller import scram
from replication.controller.bootstrap import BOOTSTRAP_CHECKPOINT, SUPPORTED_FEATURES
from replication.controller.context import ControllerConfig
from replication.controller.features import reason_of_dependency
from replication.metadata.record_serde import MetadataRecordSerde
from replication.metadata.tables import KRAFT_VERSION, METADATA_VERSION
from replication.raft.log import METADATA_DIRECTORY
from replication.raft.snapshots import SnapshotId, write_snapshot
from replication.raft.voter_records import voter_controls
from replication.raft.voter_set import Endpoint, Voter, VoterSet
from server.config.kafka_config import KafkaConfig, is_number
from server.node.config_check import check
from server.node.first_rules import RuleError, acl_records
from server.node.quorum_config import QuorumConfig
from server.security.sasl.scram import salt_of
from storage import files
from storage.checkpoint import (
    META_PROPERTIES,
    DirectoryLock,
    MetaProperties,
    write_meta_properties,
)
from storage.directories.log_dirs import LogDirError, inspect_log_dirs
from wire.errors import KafkaError
from wire.messages.metadata_records import FeatureLevelRecord, UserScramCredentialRecord
from wire.primitives import uuid_from_text, uuid_to_text

# metadata.version by name; the first is level 7 (Kafka: MetadataVersion).
_RELEASES = tuple(
    f"{release}-IV{number}"
    for release, numbers in (
        ("3.3", (3,)),
        ("3.4", (0,)),
        ("3.5", (0, 1, 2)),
        ("3.6", (0, 1, 2)),
        ("3.7", (0, 1, 2, 3, 4)),
        ("3.8", (0,)),
        ("3.9", (0,)),
        ("4.0", (0, 1, 2, 3)),
        ("4.1", (0, 1)),
        ("4.2", (0, 1)),
        ("4.3", (0,)),
    )
    for number in numbers
)
_FIRST_LEVEL = 7
# The first release a feature of a new cluster may be on in, of those we turn on by ourselves.
_SINCE = {
    "eligible.leader.replicas.version": 26, "group.version": 22, "share.version": 28,
    "streams.version": 29, "transaction.version": 24,
}  # fmt: skip


_SCRAM_FIELDS = ("name", "password", "saltedpassword", "salt", "iterations")


class FormatError(Exception):
    """The node cannot be formatted like this; the text says why and what to do."""


class FormatOptions(NamedTuple):
    """What `barnabas format` was asked, by the names of `kafka-storage format`."""

    cluster_id: str
    standalone: bool = False
    initial_controllers: str | None = None
    no_initial_controllers: bool = False
    ignore_formatted: bool = False
    release_version: str | None = None
    features: Sequence[str] = ()
    add_scram: Sequence[str] = ()
    add_acl: Sequence[str] = ()

    @property
    def is_dynamic(self) -> bool:
        return (
            self.standalone or self.no_initial_controllers or self.initial_controllers is not None
        )


def format_node(
    config: KafkaConfig, options: FormatOptions, new_uuid: Callable[[], bytes], wall_ms: int
) -> list[str]:
    """Format the log directories of this node; returns what was done, a line for each.

    Raises ConfigError, FormatError, LogDirError, before anything was written, and OSError.
    """
    quorum = check(config)
    _check_options(config, quorum, options)
    features = feature_levels(options)
    values = _first_values(features, options, new_uuid)
    is_secret = bool(options.add_scram or options.add_acl)
    dirs = config.log_dirs()
    metadata_dir = Path(config.get_str("metadata.log.dir") or dirs[0])
    if metadata_dir not in dirs:
        dirs = [*dirs, metadata_dir]
    known = inspect_log_dirs(dirs, quorum.node_id, options.cluster_id, _is_our_leftover)
    formatted = [path for path, properties in known.items() if properties is not None]
    if formatted and not options.ignore_formatted:
        raise FormatError(
            f"{formatted[0]} is formatted already: --ignore-formatted passes over it and formats"
            " the others"
        )
    voters = _initial_voters(quorum, options, new_uuid)
    me = next((voter for voter in voters or () if voter.node_id == quorum.node_id), None)
    lines = []
    for path in (path for path, properties in known.items() if properties is None):
        is_metadata = path == metadata_dir
        directory_id = me.directory_id if me is not None and is_metadata else new_uuid()
        properties = MetaProperties(options.cluster_id, quorum.node_id, directory_id)
        controls = None
        if voters is not None and is_metadata:
            controls = voter_controls(VoterSet(voters, features[KRAFT_VERSION]))
        _format_dir(path, properties, values, controls, wall_ms, 0o600 if is_secret else 0o644)
        lines.append(
            f"formatted {path} node.id={quorum.node_id} cluster.id={options.cluster_id}"
            f" directory.id={uuid_to_text(directory_id)}"
        )
    return lines or ["all log directories are formatted already"]


def _check_options(config: KafkaConfig, quorum: QuorumConfig, options: FormatOptions) -> None:
    if quorum.voters and options.is_dynamic:
        raise FormatError(
            f"controller.quorum.voters = {config.text('controller.quorum.voters')!r} names static"
            " voters: remove it and set controller.quorum.bootstrap.servers for a dynamic quorum,"
            " or leave out --standalone, --initial-controllers and --no-initial-controllers"
        )
    if options.standalone and not quorum.is_controller:
        raise FormatError("--standalone: this node is no controller (process.roles)")
    is_told = bool(quorum.voters) or options.is_dynamic or quorum.is_alone
    if quorum.is_controller and not is_told:
        raise FormatError(
            "controller.quorum.voters is not set, so say who votes first: --standalone (this node"
            " alone), --initial-controllers (the same list on every node), or"
            " --no-initial-controllers (this node joins a quorum that exists)"
        )


def _first_values(
    features: Mapping[str, int], options: FormatOptions, new_uuid: Callable[[], bytes]
) -> list[bytes]:
    """The records of `bootstrap.checkpoint`. Raises FormatError, also for what none can hold."""
    names = sorted(features, key=lambda name: (name != METADATA_VERSION, name))
    serde = MetadataRecordSerde()
    try:
        records = [
            *(
                FeatureLevelRecord(name=name, feature_level=features[name])
                for name in names
                if name != KRAFT_VERSION  # of the quorum, not of the metadata
            ),
            *scram_records(options.add_scram, features[METADATA_VERSION]),
            *_rules(options.add_acl, new_uuid),
        ]
        return [serde.encode(record) for record in records]
    except UnicodeEncodeError:
        raise FormatError("--add-scram and --add-acl: expected text in UTF-8") from None
    except KafkaError as error:
        raise FormatError(f"--add-scram and --add-acl: {error.detail}") from None


def feature_levels(options: FormatOptions) -> dict[str, int]:
    """The levels a new cluster starts with, kraft.version among them. Raises FormatError."""
    asked = dict(_parse_feature(text) for text in options.features)
    if options.release_version is not None and METADATA_VERSION in asked:
        raise FormatError(f"--release-version says {METADATA_VERSION} already: leave out --feature")
    level = asked.get(METADATA_VERSION)
    if level is None:
        level = _release_level(options.release_version or _RELEASES[-1])
    defaults = ControllerConfig(node_id=0, cluster_id="").features
    levels = {name: n for name, n in defaults.items() if level >= _SINCE.get(name, 0)}
    levels |= asked | {METADATA_VERSION: level}
    kraft = 1 if options.is_dynamic else 0
    if levels.setdefault(KRAFT_VERSION, kraft) != kraft:
        raise FormatError(
            f"--feature {KRAFT_VERSION}={levels[KRAFT_VERSION]}: expected {kraft}, which follows"
            " from how the voters are named (--standalone and its kin, or controller.quorum.voters)"
        )
    for name, value in levels.items():
        supported = SUPPORTED_FEATURES.get(name)
        if supported is None:
            raise FormatError(
                f"--feature {name}: expected one of {', '.join(sorted(SUPPORTED_FEATURES))}"
            )
        if not supported.minimum <= value <= supported.maximum:
            raise FormatError(
                f"--feature {name}={value}: expected {supported.minimum} to {supported.maximum}"
            )
        if reason := reason_of_dependency(name, value, levels):
            raise FormatError(f"--feature {name}={value}: {reason}")
    return levels


def _parse_feature(text: str) -> tuple[str, int]:
    name, equals, level = text.partition("=")
    if not (equals and name and level.isascii() and level.isdigit() and len(level) <= 5):
        raise FormatError(f"--feature {text!r}: expected NAME=LEVEL, such as kraft.version=1")
    return name, int(level)


def _release_level(text: str) -> int:
    """The level of `4.3-IV0`, or of `4.3`: its last one."""
    for index in range(len(_RELEASES) - 1, -1, -1):
        if text in (_RELEASES[index], _RELEASES[index].partition("-")[0]):
            return _FIRST_LEVEL + index
    raise FormatError(f"--release-version {text!r}: expected one of {', '.join(_RELEASES)}")


# ---- users


def scram_records(
    arguments: Sequence[str], metadata_version: int
) -> list[UserScramCredentialRecord]:
    """Read `SCRAM-SHA-256=[name=alice,password=s]` arguments (Kafka: ScramParser). Raises
    FormatError, which quotes nothing: it may be a password."""
    if arguments and metadata_version < scram.VERSION_SINCE:
        raise FormatError("--add-scram needs metadata.version 3.5-IV2 or newer")
    return [_scram_record(argument.strip()) for argument in arguments]


def _scram_record(argument: str) -> UserScramCredentialRecord:
    name, _equals, rest = argument.partition("=")
    mechanism = scram.MECHANISMS.get(name)
    if mechanism is None or not (rest.startswith("[") and rest.endswith("]")):
        raise FormatError(
            f"--add-scram: expected {'=[...] or '.join(scram.MECHANISMS)}=[...], such as"
            " SCRAM-SHA-256=[name=alice,password=secret]"
        )
    fields: dict[str, str] = {}
    for item in rest[1:-1].split(","):
        key, equals, value = item.strip().partition("=")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        if not equals or key not in _SCRAM_FIELDS or key in fields:
            raise FormatError(
                f"--add-scram: expected {', '.join(_SCRAM_FIELDS)}, each once at most"
            )
        fields[key] = value
    if not fields.get("name"):
        raise FormatError("--add-scram: expected a name")
    iterations = fields.get("iterations", "4096")
    low, high = scram.ITERATIONS_MIN, scram.ITERATIONS_MAX
    if not is_number(iterations, high + 1) or int(iterations) < low:
        raise FormatError(f"--add-scram: expected {low} to {high} iterations")
    salt, salted = _scram_secret(fields, mechanism, int(iterations))
    return scram.scram_record(fields["name"], mechanism, salted, salt, int(iterations))


def _scram_secret(
    fields: Mapping[str, str], mechanism: scram.ScramMechanism, iterations: int
) -> tuple[bytes, bytes]:
    """(salt, salted password)."""
    if ("password" in fields) is ("saltedpassword" in fields):
        raise FormatError("--add-scram: expected password, or saltedpassword with its salt")
    try:
        salt = base64.b64decode(fields.get("salt", ""), validate=True)
        salted = base64.b64decode(fields.get("saltedpassword", ""), validate=True)
    except ValueError:
        raise FormatError("--add-scram: salt and saltedpassword are base64") from None
    if "password" not in fields:
        if not salt or not salted:
            raise FormatError("--add-scram: saltedpassword needs its salt beside it")
        return salt, salted
    if not fields["password"]:
        raise FormatError("--add-scram: expected a password that is not empty")
    salt = salt or salt_of(secrets.token_bytes())
    password = fields["password"].encode()
    return salt, hashlib.pbkdf2_hmac(mechanism.hash, password, salt, iterations)


def _rules(arguments: Sequence[str], new_uuid: Callable[[], bytes]) -> list[Any]:
    try:
        return list(acl_records(arguments, new_uuid))
    except RuleError as error:
        raise FormatError(f"--add-acl: {error}") from None


# ---- the first voters


def parse_initial_controllers(text: str, listener: str) -> list[Voter]:
    """Read `ID@HOST:PORT:DIRECTORY-ID,...`. Raises FormatError."""
    voters = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _at, rest = item.partition("@")
        address, _colon, directory = rest.rpartition(":")
        host, colon, port = address.rpartition(":")
        try:
            directory_id = uuid_from_text(directory)
        except ValueError:
            directory_id = b""
        are_numbers = is_number(name, 1 << 31) and is_number(port, 1 << 16)
        if not (colon and host and are_numbers and directory_id):
            raise FormatError(
                f"--initial-controllers {item!r}: expected ID@HOST:PORT:DIRECTORY-ID, the last one"
                " as `barnabas random-uuid` prints it"
            )
        endpoint = Endpoint(listener, host.strip("[]"), int(port))
        voters.append(Voter(int(name), directory_id, (endpoint,)))
    if not voters or len({voter.node_id for voter in voters}) != len(voters):
        raise FormatError(f"--initial-controllers {text!r}: expected each controller once")
    return voters


def _initial_voters(
    quorum: QuorumConfig, options: FormatOptions, new_uuid: Callable[[], bytes]
) -> list[Voter] | None:
    if options.initial_controllers is not None:
        listener = quorum.controller_listener_names[0]
        return parse_initial_controllers(options.initial_controllers, listener)
    if not options.standalone:
        return None
    if not quorum.controller_listeners:
        raise FormatError("--standalone: `listeners` has none of controller.listener.names")
    listener_ = quorum.controller_listeners[0]
    host = "localhost" if listener_.host in ("", "0.0.0.0", "::") else listener_.host
    endpoint = Endpoint(listener_.name, host, listener_.port)
    return [Voter(quorum.node_id, new_uuid(), (endpoint,))]


# ---- the files


def _is_our_leftover(directory: Path, name: str) -> bool:
    """What an earlier try that was cut short may have left in an unformatted directory."""
    if name == BOOTSTRAP_CHECKPOINT or name.startswith(SnapshotId(0, 0).file_name):
        return True
    if name != METADATA_DIRECTORY:
        return False
    first = SnapshotId(0, 0).file_name
    return all(inner.startswith(first) for inner in os.listdir(directory / name))


def _format_dir(
    path: Path,
    properties: MetaProperties,
    values: Sequence[bytes],
    controls: Sequence[Any] | None,
    wall_ms: int,
    mode: int,
) -> None:
    files.make_directories(path)
    lock = DirectoryLock(path)
    if not lock.try_acquire():
        raise LogDirError(f"{path} is in use by another broker: stop it first")
    try:
        write_snapshot(path, SnapshotId(0, 0), 0, wall_ms, [], values, mode)
        files.replace(path / SnapshotId(0, 0).file_name, path / BOOTSTRAP_CHECKPOINT)
        if controls is not None:
            metadata = path / METADATA_DIRECTORY
            metadata.mkdir(mode=0o700, exist_ok=True)
            write_snapshot(metadata, SnapshotId(0, 0), wall_ms, wall_ms, controls, [])
        files.sync_directory(path)
        write_meta_properties(path / META_PROPERTIES, properties)
    finally:
        lock.release()
