"""The smallest shared parts: varints, uuids, partition names, and numbers with a special meaning.

Varints carry seven bits a byte, lowest first; the high bit says that more follow. `uvarint` is for
lengths and tags; the zigzag-coded signed numbers inside records are `wire.record_body`'s. A read
function takes the data and a position and returns the value and the position behind it; it raises
MalformedFrame for a varint that is too long, and IndexError at the end of the data: callers that
decode whole structures turn both into their own error at one place.

A uuid is 16 `bytes`, in memory as on the wire; its text is base64url without padding, as Kafka's
class Uuid prints it.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

from wire.errors import MalformedFrame, TooManyElements

ZERO_UUID = bytes(16)
# Kafka's Uuid.METADATA_TOPIC_ID: the id of __cluster_metadata.
METADATA_TOPIC_ID = (1).to_bytes(16, "big")
METADATA_TOPIC = "__cluster_metadata"
"""The metadata log's name: no topic, and none may be called so."""

# ListOffsets: timestamps that ask for an end of the log instead of a time.
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6

# "None of it", where the protocol has no null.
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_OFFSET = -1

# Fetch sessions (KIP-227).
NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1

# Tagged fields that a header may have. Kafka 4.3's have none.
TAGS_MAX = 256

# authorized_operations when they were not asked for.
UNKNOWN_OPERATIONS = -(2**31)


class TopicPartition(NamedTuple):
    """A partition's name; as a dict key it equals the plain tuple (topic, partition_index)."""

    topic: str
    partition_index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition_index}"


class FilePart(Protocol):
    """Bytes that stay in a file until the socket sends them; the encoder only asks their count."""

    def __len__(self) -> int: ...


# An encoded message is a list of these, to be sent one after the other.
Part: TypeAlias = bytes | bytearray | memoryview | FilePart


def read_uvarint(data: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits: (value, position behind it)."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedFrame("unsigned varint is longer than 5 bytes")
    if value > 0xFFFFFFFF:
        raise MalformedFrame("unsigned varint is above 32 bits")
    return value, pos


def next_tag(data: bytes, pos: int, previous: int) -> tuple[int, int, int]:
    """Read one tag and its size: (tag, position behind its content, position of its content)."""
    tag, pos = read_uvarint(data, pos)
    if tag <= previous:
        raise MalformedFrame(f"tag {tag} follows tag {previous}")
    size, pos = read_uvarint(data, pos)
    end = pos + size
    if end > len(data):
        raise MalformedFrame(f"tagged field {tag} ends beyond the data")
    return tag, end, pos


def skip_tags(data: bytes, pos: int) -> int:
    """Step over a header's tag section, none of whose tags is known (KIP-482): the position behind.

    TooManyElements for more than TAGS_MAX of them; what each costs here is a Python loop's turn.
    """
    count, pos = read_uvarint(data, pos)
    if count > TAGS_MAX:
        raise TooManyElements(f"{count} tagged fields, {TAGS_MAX} are allowed")
    return pass_tags(data, pos, count)


def pass_tags(data: bytes, pos: int, count: int) -> int:
    """Step over `count` tags; the position behind them."""
    tag = -1
    for _ in range(count):
        tag, pos, _ = next_tag(data, pos, tag)
    return pos


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint; the value must not be negative."""
    if value < 0:
        raise ValueError(f"an unsigned varint cannot be {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def uuid_to_text(uuid: bytes) -> str:
    """The 22-character form of a uuid that Kafka prints and keeps in its files."""
    if len(uuid) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(uuid)}")
    text = b2a_base64(uuid, newline=False).decode("ascii")
    return text.rstrip("=").replace("+", "-").replace("/", "_")


def uuid_from_text(text: str) -> bytes:
    """The uuid of its 22-character form; ValueError for anything else."""
    uuid = b""
    if len(text) == 22 and not ("+" in text or "/" in text):
        plain = text.replace("-", "+").replace("_", "/") + "=="
        with suppress(ValueError):  # binascii.Error is one; text that is not ASCII raises another
            uuid = a2b_base64(plain, strict_mode=True)
    if len(uuid) != 16:
        raise ValueError(f"not a uuid of 22 base64url characters: {text!r}")
    return uuid


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, as a signed 32-bit number.

    Kafka places groups and transactional ids on coordinator partitions by it.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for(key: str, count: int) -> int:
    """The coordinator partition, of `count`, that keeps `key` (Kafka's Utils.abs(hash) % count)."""
    value = java_string_hash(key)
    return 0 if value == -(2**31) else abs(value) % count
