# ruff: noqa: N802  field constructors are capitalised so that no field's name can shadow them
"""The declaration language of Kafka's messages and internal records.

A message is a class; its body lists the fields in wire order:

    class DeleteRecordsRequest(Request, key=21, versions=(0, 2), flexible=2):
        class Topic(Struct):
            name: str = String()
            ...
        topics: list[Topic] = Array(Topic)
        timeout_ms: int = Int32()

Every field is Kafka's own name in snake_case, in every version unless `since` or `until` say less.
`nullable` is the first version in which None is allowed, `tag` makes it a tagged field, `default`
is the value where it is absent. There are no other knobs. A nested struct stands directly above
the field that uses it; its name is ours.

What a class offers:
- keyword-only construction, checked by mypy: a field without `default` must be given. Array
  defaults are `()` in the declaration and a new list in each object. `Msg.blank()` is Kafka's fresh
  object: every field at the default it has there, given or not.
- `Msg.decode(data, version, pos=0)` and `msg.encode(version)`; wire.codec writes that code when it
  is first needed, one function per class, version and direction.
- `api_key`, `versions` (lowest, highest), `flexible` (first flexible version or None), `kind`.

One class serves all versions. On encode a field that the version lacks is left out; on decode it
gets its default. Three things to know about values:
- A tagged struct that Kafka cannot make null is declared with `default=None`: None means that it is
  not sent, and a struct of nothing but defaults is not sent either.
- `records` decode to a memoryview into the frame, and encode from bytes-like objects or any object
  with a length (a file slice), which comes out of `encode` as it went in.
- `uuid` is 16 bytes; `bytes` decode to bytes.

Classes are cheap to make (that is start-up time): `__init__` too is compiled on first use.
"""

from __future__ import annotations

from struct import error as struct_error
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from wire.errors import MalformedFrame, TooManyElements
from wire.primitives import ZERO_UUID, Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class _Required:
    """Stands for "no default": the constructor must be given the field."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
ANY_NUMBER = 1 << 31
"""More elements than any message can have: for what comes from our own nodes and files."""
_ZERO = {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID, "float64": 0.0}


class Field:
    """One declared field; `name` is filled in when its class is made."""

    __slots__ = ("default", "kind", "name", "nullable", "since", "struct", "tag", "until")

    def __init__(
        self,
        kind: str,
        since: int | None,
        until: int | None,
        nullable: int | None,
        tag: int | None,
        default: Any,
        struct: type[Struct] | None = None,
    ) -> None:
        self.name = ""
        self.kind = kind  # Kafka's word for the type: "int32", "[]string", "[]struct", ...
        self.since = since
        self.until = until
        self.nullable = nullable
        self.tag = tag
        self.default = default
        self.struct = struct

    def present(self, version: int) -> bool:
        """Whether the field is on the wire in this version of its message."""
        return (self.since or 0) <= version and (self.until is None or version <= self.until)

    def null_allowed(self, version: int) -> bool:
        """Whether None may be sent in this version."""
        return self.nullable is not None and version >= self.nullable

    def blank(self) -> Any:
        """The value in Kafka's fresh object."""
        if self.default is not REQUIRED:
            return [] if self.default == () else self.default
        if self.kind.startswith("[]"):
            return []
        if self.struct is not None:
            return self.struct.blank()
        return _ZERO.get(self.kind, 0)

    def check(self) -> None:
        """Refuse a declaration that some version could not decode."""
        partial = self.since is not None or self.until is not None or self.tag is not None
        if partial and self.default is REQUIRED and not (self.struct and self.nullable is not None):
            raise TypeError(f"{self.name}: a field that can be absent needs a default")


def Bool(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """One byte, 0 or 1."""
    return Field("bool", since, until, nullable, tag, default)


def Int8(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """A signed 8-bit integer."""
    return Field("int8", since, until, nullable, tag, default)


def Int16(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """A signed 16-bit integer."""
    return Field("int16", since, until, nullable, tag, default)


def Uint16(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """An unsigned 16-bit integer."""
    return Field("uint16", since, until, nullable, tag, default)


def Int32(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """A signed 32-bit integer."""
    return Field("int32", since, until, nullable, tag, default)


def Uint32(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """An unsigned 32-bit integer."""
    return Field("uint32", since, until, nullable, tag, default)


def Int64(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """A signed 64-bit integer."""
    return Field("int64", since, until, nullable, tag, default)


def Float64(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """An IEEE 754 double."""
    return Field("float64", since, until, nullable, tag, default)


def Uuid(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """16 bytes."""
    return Field("uuid", since, until, nullable, tag, default)


def String(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """UTF-8 text."""
    return Field("string", since, until, nullable, tag, default)


def Bytes(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """A byte string."""
    return Field("bytes", since, until, nullable, tag, default)


def Records(
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """Record batches: a memoryview into the frame; see the module docstring."""
    return Field("records", since, until, nullable, tag, default)


def Array(
    element: type[Struct] | Callable[..., Any],
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """A list of structs, or of a type given by its constructor: Array(Int32)."""
    if isinstance(element, type):
        return Field("[]struct", since, until, nullable, tag, default, element)
    kind = "[]" + element.__name__.lower()
    return Field(kind, since, until, nullable, tag, default)


def Nested(
    struct: type[Struct],
    *,
    since: int | None = None,
    until: int | None = None,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = REQUIRED,
) -> Any:
    """One struct inside another."""
    return Field("struct", since, until, nullable, tag, default, struct)


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        Bool,
        Int8,
        Int16,
        Uint16,
        Int32,
        Uint32,
        Int64,
        Float64,
        Uuid,
        String,
        Bytes,
        Records,
        Array,
        Nested,
    ),
)
class StructMeta(type):
    """Turns declared fields into slots."""

    schema: tuple[Field, ...]

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructMeta:
        schema = []
        for key, value in namespace.items():
            if type(value) is Field:
                value.name = key
                value.check()
                schema.append(value)
        for field in schema:
            del namespace[field.name]
        namespace["__slots__"] = tuple([field.name for field in schema])
        made = super().__new__(cls, name, bases, namespace, **options)
        made.schema = tuple(schema)
        return made


class Struct(metaclass=StructMeta):
    """A group of fields; equal to another of its class with equal fields; not hashable."""

    if not TYPE_CHECKING:

        def __init__(self, **values):
            """Compile the class's own constructor, which takes this one's place, and run it."""
            cls = type(self)
            cls.__init__ = _compile_init(cls)
            self.__init__(**values)

    @classmethod
    def blank(cls) -> Self:
        """Kafka's fresh object: each field at the default it has there."""
        return cls(**{field.name: field.blank() for field in cls.schema})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            getattr(self, field.name) == getattr(other, field.name) for field in type(self).schema
        )

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{field.name}={getattr(self, field.name, '<unassigned>')!r}"
            for field in type(self).schema
        )
        return f"{type(self).__qualname__}({shown})"


def _compile_init(cls: type[Struct]) -> Callable[..., None]:
    """Write `def __init__(self, *, a, b=...)`: a plain function, without a loop over fields."""
    namespace: dict[str, Any] = {"new_list": REQUIRED}
    parameters = ["self"]
    body = ["pass"]
    for field in cls.schema:
        name = field.name
        value = name
        if len(parameters) == 1:
            parameters.append("*")
        if field.default is REQUIRED:
            parameters.append(name)
        elif field.default == ():
            parameters.append(f"{name}=new_list")
            value = f"[] if {name} is new_list else {name}"
        else:
            namespace["default_" + name] = field.default
            parameters.append(f"{name}=default_{name}")
        body.append(f"self.{name} = {value}")
    source = f"def __init__({', '.join(parameters)}):\n    " + "\n    ".join(body)
    exec(source, namespace)  # noqa: S102  built from our own declarations only
    made: Callable[..., None] = namespace["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


class Message(Struct):
    """What can be encoded on its own: a request, a response or an internal record."""

    kind: ClassVar[str]
    versions: ClassVar[tuple[int, int]]
    flexible: ClassVar[int | None]
    allows_bytes_behind: ClassVar[bool] = False
    _decoders: ClassVar[dict[int, Callable[[bytes, int, int], Any]]]
    _encoders: ClassVar[dict[int, Callable[[Any, bytearray], list[Part]]]]

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether this version uses compact lengths and tagged fields."""
        return cls.flexible is not None and version >= cls.flexible

    @classmethod
    def decode(
        cls, data: bytes, version: int, pos: int = 0, elements_max: int = ANY_NUMBER
    ) -> Self:
        """Read the message that fills `data` from `pos` on; MalformedFrame if it is not one.

        `elements_max` bounds the elements of all its arrays and its tagged fields together, and
        with them work and memory: TooManyElements if it has more.
        """
        decoder = cls._decoders.get(version)
        if decoder is None:
            decoder = cls.decoder(version)
        try:
            message: Self = decoder(data, pos, elements_max)
        except TooManyElements:
            raise
        except (IndexError, struct_error, UnicodeDecodeError, MalformedFrame) as error:
            raise MalformedFrame(f"{cls.__name__} v{version}: {error}") from error
        return message

    def encode(self, version: int) -> list[Part]:
        """The message as parts to be sent in turn: one bytearray, unless records stay apart."""
        return self.encode_into(bytearray(), version)

    def encode_into(self, out: bytearray, version: int) -> list[Part]:
        """Like encode, behind what `out` already holds; `out` becomes the first part."""
        encoder = self._encoders.get(version)
        if encoder is None:
            encoder = self.encoder(version)
        return encoder(self, out)

    def encode_bytes(self, version: int) -> bytes:
        """The message as one bytes object; TypeError if a part is not bytes-like."""
        return b"".join(self.encode(version))  # type: ignore[arg-type]

    @classmethod
    def decoder(cls, version: int) -> Callable[[bytes, int, int], Any]:
        """The generated decode function; MalformedFrame for a version that does not exist."""
        from wire.codec import compile_decoder

        if version not in cls._decoders:
            if not cls.versions[0] <= version <= cls.versions[1]:
                raise MalformedFrame(f"{cls.__name__} has no version {version}")
            cls._decoders[version] = compile_decoder(cls, version)
        return cls._decoders[version]

    @classmethod
    def encoder(cls, version: int) -> Callable[[Any, bytearray], list[Part]]:
        """The generated encode function; ValueError for a version that does not exist."""
        from wire.codec import compile_encoder

        if version not in cls._encoders:
            if not cls.versions[0] <= version <= cls.versions[1]:
                raise ValueError(f"{cls.__name__} has no version {version}")
            cls._encoders[version] = compile_encoder(cls, version)
        return cls._encoders[version]

    @classmethod
    def _declare(cls, kind: str, versions: tuple[int, int], flexible: int | None) -> None:
        cls.kind = kind
        cls.versions = versions
        cls.flexible = flexible
        cls._decoders = {}
        cls._encoders = {}


class Request(Message):
    """A request: `class XRequest(Request, key=, versions=(lowest, highest), flexible=)`.

    `unstable` marks that the highest version is not to be advertised. Bytes behind a request are
    ignored, as Apache Kafka ignores them: librdkafka 2.16 sends three behind a Metadata request for
    all topics.
    """

    allows_bytes_behind = True
    api_key: ClassVar[int]
    latest_version_unstable: ClassVar[bool]

    def __init_subclass__(
        cls,
        *,
        key: int,
        versions: tuple[int, int],
        flexible: int | None = None,
        unstable: bool = False,
    ) -> None:
        cls._declare("request", versions, flexible)
        cls.api_key = key
        cls.latest_version_unstable = unstable
        REQUESTS[key] = cls


class Response(Message):
    """A response: `class XResponse(Response, to=XRequest)`; versions are those of the request."""

    api_key: ClassVar[int]

    def __init_subclass__(cls, *, to: type[Request]) -> None:
        cls._declare("response", to.versions, to.flexible)
        cls.api_key = to.api_key
        RESPONSES[cls.api_key] = cls


class Record(Message):
    """An internal record: `class XValue(Record, type_id=, versions=, flexible=)`.

    `type_id` is the number by which records of one log are told apart, where they have one. What
    stands around the fields (type, version) is told by the module of the records.
    """

    type_id: ClassVar[int | None]

    def __init_subclass__(
        cls, *, versions: tuple[int, int], flexible: int | None = None, type_id: int | None = None
    ) -> None:
        cls._declare("record", versions, flexible)
        cls.type_id = type_id


# By api_key: the requests and responses whose area has been imported; see wire.messages.
REQUESTS: dict[int, type[Request]] = {}
RESPONSES: dict[int, type[Response]] = {}
