"""Two other implementations read and write the same bytes: kio and kafka-python.

Both are test dependencies and are read as installed. kio has a class per version and covers the
broker's own APIs too; kafka-python carries Kafka's field names.
"""

from __future__ import annotations

import random
import warnings
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.serial import entity_reader, entity_writer

from wire.messages import all_messages
from wire.messages.cluster import ApiVersionsResponse, MetadataRequest
from wire.primitives import UNKNOWN_OPERATIONS, ZERO_UUID
from wire.schema import Message, Struct

if TYPE_CHECKING:
    from tests.wire.conftest import Maker

# kio gives some integers a meaning (error codes, durations, times) and refuses others.
KIO_HIGHEST = 50


def snake(name: str) -> str:
    """FetchRequest -> fetch_request, KRaftVersionRecord -> k_raft_version_record (kio's way)."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def kio_class(cls: type[Message], version: int) -> type[Any] | None:
    name = cls.__name__
    module = snake(name.removesuffix("Request").removesuffix("Response"))
    kind = "data" if cls.kind == "record" else cls.kind
    try:
        found: type[Any] = getattr(import_module(f"kio.schema.{module}.v{version}.{kind}"), name)
    except (ImportError, AttributeError):
        return None
    return found


def test_kio_reads_and_rewrites_what_we_encode(make: type[Maker]) -> None:
    """All requests and responses in every version."""
    maker = make(random.Random(random.getrandbits(32)), highest=KIO_HIGHEST)
    compared = 0
    for cls in all_messages():
        for version in range(cls.versions[0], cls.versions[1] + 1):
            peer = kio_class(cls, version)
            if peer is None:
                assert cls.kind == "record", cls.__name__
                continue
            read, write = entity_reader(peer), entity_writer(peer)
            for _ in range(2):
                encoded = maker.message(cls, version).encode_bytes(version)
                entity, end = read(encoded, 0)
                assert end == len(encoded), (cls.__name__, version)
                rewritten = BytesIO()
                write(rewritten, entity)
                assert rewritten.getvalue() == encoded, (cls.__name__, version, entity)
                compared += 1
    assert compared > 1200


def kafka_python_classes() -> dict[str, Any]:
    """kafka-python's messages by Kafka's name."""
    with warnings.catch_warnings():
        # It reads its schemas through a function that newer Pythons warn about.
        warnings.simplefilter("ignore", DeprecationWarning)
        for area in ("admin", "consumer", "producer", "metadata", "sasl"):
            import_module(f"kafka.protocol.{area}")
    found: dict[str, Any] = {}
    unseen = list(import_module("kafka.protocol.api_message").ApiMessage.__subclasses__())
    while unseen:
        cls = unseen.pop()
        unseen += cls.__subclasses__()
        if cls._class_version is None:
            found[cls.__name__] = cls
    return found


def test_kafka_python_reads_the_same_values_under_the_same_names(make: type[Maker]) -> None:
    """All messages it has, in every version that both have; and it rewrites the same bytes."""
    peers = kafka_python_classes()
    maker = make(random.Random(random.getrandbits(32)))
    compared = 0
    for cls in all_messages():
        peer = peers.get(cls.__name__)
        if peer is None:
            continue
        for version in range(cls.versions[0], min(cls.versions[1], peer.max_version) + 1):
            message = maker.message(cls, version)
            if isinstance(message, ApiVersionsResponse):
                message.error_code = 0  # it reads any error as version 0 (KIP-511)
            ask_no_operations(message)
            encoded = message.encode_bytes(version)
            theirs = peer.decode(encoded, version=version)
            assert differences(message, theirs, version) == [], (cls.__name__, version)
            theirs._header = None  # decode leaves it unassigned, and encode asks for it
            assert bytes(theirs.encode(version=version)) == encoded, (cls.__name__, version)
            compared += 1
    assert compared > 400


def ask_no_operations(struct: Struct) -> None:
    """Set bit fields, which it shows as sets under shorter names, to "not asked for"."""
    for field in type(struct).schema:
        value = getattr(struct, field.name)
        if field.name.endswith("authorized_operations"):
            setattr(struct, field.name, UNKNOWN_OPERATIONS)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Struct):
                ask_no_operations(inner)


def differences(ours: Struct, theirs: Any, version: int) -> list[str]:
    """Names of the fields whose values differ."""
    found = []
    for field in type(ours).schema:
        if not field.present(version) or field.name.endswith("authorized_operations"):
            continue
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if field.struct is None:
            if plain(mine) != plain(other):
                found.append(f"{type(ours).__qualname__}.{field.name}: {mine!r} {other!r}")
        elif isinstance(mine, list):
            assert len(mine) == len(other)
            for one, peer in zip(mine, other, strict=True):
                found += differences(one, peer, version)
        elif mine is not None:  # None: not sent, and it has a struct of defaults there
            found += differences(mine, other, version)
    return found


def plain(value: Any) -> Any:
    """uuid objects as their bytes, views as bytes."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, UUID):
        return value.bytes
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def test_a_message_of_kafka_python_decodes_here_with_the_same_values() -> None:
    """The other direction, by hand once: their encoder, our decoder."""
    peer = kafka_python_classes()["MetadataRequest"]
    theirs = peer(
        topics=[peer.MetadataRequestTopic(topic_id=UUID(int=7), name="orders")],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    for version in (9, 10, 13):
        ours = MetadataRequest.decode(bytes(theirs.encode(version=version)), version)
        assert ours.topics is not None
        assert ours.topics[0].name == "orders"
        assert ours.topics[0].topic_id == (UUID(int=7).bytes if version >= 10 else ZERO_UUID)
        assert ours.allow_auto_topic_creation is False
        assert ours.include_topic_authorized_operations is True
