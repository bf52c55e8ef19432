"""Writes the code that decodes and encodes messages, one function for each version and direction.

Why: a loop over a description of fields would ask the same questions (is the field there, may it
be null, is the version flexible) for every value of every request. Here they are asked once, when
a version is first used; what remains is straight-line Python. `python -m wire.codec Produce 9`
prints it, and tracebacks show it.

How: neighbouring fields of fixed size, and the length byte of what follows them, become one
prebuilt Struct call. Strings, bytes and arrays are read at a position that only moves forward, so
one test at the end (the position is the end of the data) finds every length that lied. Encoding
appends to a bytearray; records that are large, or that lie in a file, become parts of their own.

Hostile input costs no more than it brings: an array's count is refused if that many of the smallest
possible elements do not fit into the bytes left, and null, negative lengths, tags that do not
ascend and tag sizes that do not match their content are refused where they stand. The elements of
all arrays and the tags together may be `left` at most: a byte can become an object of a hundred,
so who decodes for strangers says how many (TooManyElements). Only IndexError, struct.error,
UnicodeDecodeError and MalformedFrame can come out of a decoder; Message.decode makes them one.

Budget (`python -m benchmarks.micro.codec`): decode Produce v9 with one partition 3 us, encode its
answer 1.5 us, encode a Fetch v12 answer 2.5 us; compiling one function takes about 0.5 ms.
"""

from __future__ import annotations

import struct
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wire import codec_calls
from wire.errors import MalformedFrame
from wire.primitives import next_tag, pass_tags, uvarint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wire.primitives import Part
    from wire.schema import Field, Message, Struct

# Kafka's fixed-size types as struct codes; network byte order.
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
# Below this many bytes, copying records costs less than one more buffer in the socket's write.
_COPIED_RECORDS_BYTES_MAX = 4096


def compile_decoder(cls: type[Message], version: int) -> Callable[[bytes, int, int], Any]:
    """The function (data, position, elements at most) -> message for one version."""
    made: Callable[[bytes, int, int], Any] = _DecoderWriter(cls, version).compile()
    return made


def compile_encoder(cls: type[Message], version: int) -> Callable[[Any, bytearray], list[Part]]:
    """The function (message, first part) -> parts for one version."""
    made: Callable[[Any, bytearray], list[Part]] = _EncoderWriter(cls, version).compile()
    return made


# --- writing source ---------------------------------------------------------------------------


class _Writer:
    """Source text under construction, with the names it will run with.

    `pending` is the run of fixed-size fields not yet written: (struct code, expression). It may
    span struct borders, but never a branch or a loop: whoever opens or closes one flushes first.
    """

    direction: str
    parameters: str

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = cls.is_flexible(version)
        self.lines: list[str] = []
        self.indent = 0
        self.pending: list[tuple[str, str]] = []
        self.names = 0
        self.namespace: dict[str, Any] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is written inside; the run of fixed fields ends at both borders."""
        self.flush()
        self.line(head)
        self.indent += 1
        yield
        self.flush()
        self.indent -= 1

    def fresh(self, prefix: str) -> str:
        """A local name that is not used yet."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, name: str, value: Any) -> str:
        """Make `value` known to the generated code under `name`, or a variation of it."""
        while self.namespace.setdefault(name, value) is not value:
            name += "_"
        return name

    def packer(self, method: str, codes: str) -> str:
        """The name of a prebuilt Struct's method for these codes."""
        name = f"{method.removesuffix('_from')}_{codes.replace('?', 't')}"
        if name not in self.namespace:
            self.namespace[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def flush(self) -> None:
        raise NotImplementedError

    def write(self) -> None:
        raise NotImplementedError

    def source(self) -> str:
        """The whole function as text."""
        if not self.lines:
            with self.block(f"def {self.name}({self.parameters}):"):
                self.write()
        return "\n".join(self.lines) + "\n"

    @property
    def name(self) -> str:
        return f"{self.direction}_{self.cls.__name__}_v{self.version}"

    def compile(self) -> Any:
        """The function, its source registered so that tracebacks can show it."""
        import linecache

        source = self.source()
        filename = f"<wire.codec {self.name}>"
        exec(compile(source, filename, "exec"), self.namespace)  # noqa: S102  our own text
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        return self.namespace[self.name]

    def fields(self, owner: type[Struct]) -> tuple[list[Field], list[Field], list[Field]]:
        """The struct's (plain, tagged, absent) fields in this version; tagged ones by tag."""
        present = [f for f in owner.schema if f.present(self.version)]
        plain = [f for f in present if f.tag is None]
        tagged = sorted((f for f in present if f.tag is not None), key=lambda f: f.tag or 0)
        absent = [f for f in owner.schema if not f.present(self.version)]
        return plain, tagged, absent

    def size_min(self, field: Field, element: bool = False) -> int:
        """The fewest bytes the field, or an element of the array it is, can take."""
        kind = field.kind
        if kind.startswith("[]") and not element:
            return 1 if self.flexible else 4
        kind = kind.removeprefix("[]")
        if kind in _FIXED:
            return struct.calcsize(">" + _FIXED[kind])
        if kind == "struct" and field.struct is not None:
            if not element and field.nullable is not None:
                return 1
            plain, _, _ = self.fields(field.struct)
            return sum(map(self.size_min, plain)) + self.flexible
        return 1 if self.flexible else 2 if kind == "string" else 4


class _DecoderWriter(_Writer):
    """Writes `def decode_X_v9(data, p, left)`; in it `n` is the length just read."""

    direction = "decode"
    parameters = "data, p, left"

    def write(self) -> None:
        self.namespace.update(
            new=object.__new__,
            more=codec_calls.more,
            more_text=codec_calls.more_text,
            long_length=codec_calls.long_length,
            long_text_length=codec_calls.long_text_length,
            refuse_length=codec_calls.refuse_length,
            refuse_count=codec_calls.refuse_count,
            next_tag=next_tag,
            pass_tags=pass_tags,
            refuse_tag=codec_calls.refuse_tag,
            unpack_from=struct.unpack_from,
            MalformedFrame=MalformedFrame,
        )
        self.line("size = len(data)")
        start = len(self.lines)
        self.struct(self.cls, "message")
        self.flush()
        if any("view[" in line for line in self.lines):
            self.lines.insert(start, "    view = memoryview(data)")
        with self.block("if p > size:" if self.cls.allows_bytes_behind else "if p != size:"):
            self.line('raise MalformedFrame(f"ends at {p} of {size} bytes")')
        self.line("return message")

    def flush(self) -> None:
        if self.pending:
            codes = "".join(code for code, _ in self.pending)
            targets = ", ".join(target for _, target in self.pending)
            if codes == "B":
                self.line(f"{targets} = data[p]")
            else:
                comma = "," if len(self.pending) == 1 else ""
                self.line(f"{targets}{comma} = {self.packer('unpack_from', codes)}(data, p)")
            self.line(f"p += {struct.calcsize('>' + codes)}")
            self.pending.clear()

    def struct(self, owner: type[Struct], var: str) -> None:
        """Read one struct into a new object held by the local `var`."""
        self.line(f"{var} = new({self.constant(owner.__name__, owner)})")
        plain, tagged, absent = self.fields(owner)
        for field in absent + tagged:
            self.line(f"{var}.{field.name} = {self.default(field)}")
        for field in plain:
            self.field(field, f"{var}.{field.name}")
        if self.flexible:
            self.tags(tagged, var)

    def default(self, field: Field) -> str:
        """An expression for the value of a field that is not there."""
        value = field.blank()
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        if value == []:
            return "[]"
        return self.constant("blank_" + field.name, field.blank) + "()"

    def field(self, field: Field, target: str) -> None:
        """Read one field that is present into `target`."""
        kind = field.kind
        if kind in _FIXED:
            self.pending.append((_FIXED[kind], target))
        elif kind == "struct":
            self.nested(field, target)
        elif kind.startswith("[]"):
            self.array(field, target)
        else:
            nullable = field.null_allowed(self.version)
            self.length("h" if kind == "string" else "i", nullable, is_text=kind == "string")
            if nullable:
                with self.block(self.if_present()):
                    self.content(kind, target)
                with self.block("else:"):
                    self.line(f"{target} = None")
            else:
                self.content(kind, target)

    def length(self, code: str, nullable: bool, *, is_text: bool = False) -> None:
        """Read a length into `n`: compact ones are one too many, so that 0 means null."""
        self.pending.append(("B" if self.flexible else code, "n"))
        self.flush()
        if self.flexible and nullable:
            rest = "more_text" if is_text else "more"
            self.line(f"if n > 127: n, p = {rest}(data, p, n)")
        elif self.flexible:
            rest = "long_text_length" if is_text else "long_length"
            self.line(f"if not 0 < n < 128: n, p = {rest}(data, p, n)")
        else:
            self.line(f"if n < {-1 if nullable else 0}: refuse_length(n)")

    def if_present(self) -> str:
        return "if n:" if self.flexible else "if n >= 0:"

    def content(self, kind: str, target: str) -> None:
        """Read the `n` bytes of a string, of bytes or of records."""
        self.line("end = p + n - 1" if self.flexible else "end = p + n")
        value = {
            "string": "data[p:end].decode()",
            "bytes": "data[p:end]",
            "records": "view[p:end]",
        }[kind]
        self.line(f"{target} = {value}")
        self.line("p = end")

    def array(self, field: Field, target: str) -> None:
        nullable = field.null_allowed(self.version)
        self.length("i", nullable)
        if nullable:
            with self.block(self.if_present()):
                self.elements(field, target)
            with self.block("else:"):
                self.line(f"{target} = None")
        else:
            self.elements(field, target)

    def elements(self, field: Field, target: str) -> None:
        """Read the `n` elements of an array that is not null."""
        kind = field.kind[2:]
        size = self.size_min(field, element=True)
        if self.flexible:
            self.line("n -= 1")
        claimed = "n" if size == 1 else f"n * {size}"
        self.line("left -= n")
        self.line(f"if left < 0 or {claimed} > size - p: refuse_count(n, size - p, left)")
        if kind == "uuid":
            self.line(f"{target} = [data[at:at + 16] for at in range(p, p + 16 * n, 16)]")
            self.line("p += 16 * n")
        elif kind in _FIXED:
            self.line(
                f'{target} = list(unpack_from(f">{{n}}{_FIXED[kind]}", data, p)) if n else []'
            )
            self.line("p += n" if size == 1 else f"p += {size} * n")
        else:
            items, item = self.fresh("items"), self.fresh("item")
            self.line(f"{target} = {items} = []")
            with self.block("for _ in range(n):"):
                if field.struct is not None:
                    self.struct(field.struct, item)
                    self.flush()
                else:
                    is_text = kind == "string"
                    self.length("h" if is_text else "i", nullable=False, is_text=is_text)
                    self.content(kind, item)
                self.line(f"{items}.append({item})")

    def nested(self, field: Field, target: str) -> None:
        """Read a struct; one that may be null begins with a marker."""
        assert field.struct is not None
        item = self.fresh("item")
        if not field.null_allowed(self.version):
            self.struct(field.struct, item)
            self.line(f"{target} = {item}")
            return
        # In a tagged field the marker is an unsigned varint, 0 or 1, which is the same one byte;
        # elsewhere it is an int8, -1 for null.
        self.pending.append(("b", "n"))
        self.flush()
        with self.block("if n > 0:" if field.tag is not None else "if n >= 0:"):
            self.struct(field.struct, item)
            self.line(f"{target} = {item}")
        with self.block("else:"):
            self.line(f"{target} = None")

    def tags(self, tagged: list[Field], var: str) -> None:
        """Read the tag section; fields that are not in it keep their defaults."""
        self.pending.append(("B", "n"))
        self.flush()
        tag, tag_end = self.fresh("tag"), self.fresh("tag_end")
        with self.block("if n:"):
            self.line("if n > 127: n, p = more(data, p, n)")
            self.line("left -= n")
            self.line("if left < 0: refuse_count(n, size - p, left)")
            if not tagged:
                self.line("p = pass_tags(data, p, n)")
                return
            self.line(f"{tag} = -1")
            with self.block("for _ in range(n):"):
                self.line(f"{tag}, {tag_end}, p = next_tag(data, p, {tag})")
                branch = "if"
                for field in tagged:
                    with self.block(f"{branch} {tag} == {field.tag}:"):
                        self.field(field, f"{var}.{field.name}")
                    branch = "elif"
                with self.block("else:"):
                    self.line(f"p = {tag_end}")
                self.line(f"if p != {tag_end}: refuse_tag({tag})")


class _EncoderWriter(_Writer):
    """Writes `def encode_X_v9(message, out)`; `self.out` is the buffer's name where we are."""

    direction = "encode"
    parameters = "message, out"

    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(cls, version)
        self.out = "out"

    def write(self) -> None:
        self.namespace.update(
            uvarint=uvarint,
            pack=struct.pack,
            append_tags=codec_calls.append_tags,
            BYTES_LIKE=(bytes, bytearray, memoryview),
        )
        start = len(self.lines)
        self.struct(self.cls, "message")
        self.flush()
        if any("parts.append" in line for line in self.lines):
            self.lines.insert(start, "    parts = [out]")
            self.line("if not out: del parts[-1]")
            self.line("return parts")
        else:
            self.line("return [out]")

    def flush(self) -> None:
        if self.pending:
            codes = "".join(code for code, _ in self.pending)
            values = ", ".join(value for _, value in self.pending if value)
            if values:
                self.line(f"{self.out} += {self.packer('pack', codes)}({values})")
            else:
                self.line(f"{self.out} += {bytes(len(codes))!r}")
            self.pending.clear()

    def struct(self, owner: type[Struct], var: str) -> None:
        plain, tagged, _ = self.fields(owner)
        for field in plain:
            self.field(field, f"{var}.{field.name}")
        if self.flexible and tagged:
            self.tags(tagged, var)
        elif self.flexible:
            self.pending.append(("x", ""))  # no tags: one zero byte

    def field(self, field: Field, value: str) -> None:
        kind = field.kind
        if kind in _FIXED:
            self.pending.append((_FIXED[kind], value))
        elif kind == "struct":
            self.nested(field, value)
        else:
            wide = "h" if kind == "string" else "i"
            local = self.fresh("items" if kind.startswith("[]") else kind)
            encoded = ".encode()" if kind == "string" else ""
            if field.null_allowed(self.version):
                self.line(f"{local} = {value}")
                with self.block(f"if {local} is None:"):
                    self.line(f"{self.out} += {self.null(wide)!r}")
                with self.block("else:"):
                    if encoded:
                        self.line(f"{local} = {local}{encoded}")
                    self.content(field, local, wide)
            else:
                self.line(f"{local} = {value}{encoded}")
                self.content(field, local, wide)

    def null(self, wide: str) -> bytes:
        return b"\0" if self.flexible else struct.pack(">" + wide, -1)

    def length(self, wide: str, local: str) -> None:
        """Write the length of what the local holds."""
        if self.flexible:
            self.flush()
            self.line(f"n = len({local}) + 1")
            self.line(f"if n < 128: {self.out}.append(n)")
            self.line(f"else: {self.out} += uvarint(n)")
        else:
            self.pending.append((wide, f"len({local})"))
            self.flush()

    def content(self, field: Field, local: str, wide: str) -> None:
        """Write length and content of a value that is not null; strings are bytes by now."""
        self.length(wide, local)
        if field.kind == "records":
            self.records(local)
        elif field.kind.startswith("[]"):
            self.elements(field, local)
        else:
            self.line(f"{self.out} += {local}")

    def records(self, local: str) -> None:
        """Small records join the buffer; others, and those in files, become parts."""
        assert self.out == "out", "records cannot be in a tagged field"
        limit = _COPIED_RECORDS_BYTES_MAX
        with self.block(f"if len({local}) < {limit} and isinstance({local}, BYTES_LIKE):"):
            self.line(f"out += {local}")
        with self.block(f"elif len({local}):"):
            self.line(f"parts.append({local})")
            self.line("out = bytearray()")
            self.line("parts.append(out)")

    def elements(self, field: Field, local: str) -> None:
        kind = field.kind[2:]
        if kind == "uuid":
            self.line(f'{self.out} += pack(">" + "16s" * len({local}), *{local})')
        elif kind in _FIXED:
            self.line(f'{self.out} += pack(f">{{len({local})}}{_FIXED[kind]}", *{local})')
        else:
            item = self.fresh("item")
            with self.block(f"for {item} in {local}:"):
                if field.struct is not None:
                    self.struct(field.struct, item)
                else:
                    if kind == "string":
                        self.line(f"{item} = {item}.encode()")
                    self.length("h" if kind == "string" else "i", item)
                    self.line(f"{self.out} += {item}")

    def nested(self, field: Field, value: str) -> None:
        assert field.struct is not None
        item = self.fresh("item")
        self.line(f"{item} = {value}")
        if not field.null_allowed(self.version):
            self.struct(field.struct, item)
            return
        null, present = (b"\0", b"\1") if field.tag is not None else (b"\xff", b"\1")
        with self.block(f"if {item} is None:"):
            self.line(f"{self.out} += {null!r}")
        with self.block("else:"):
            self.line(f"{self.out} += {present!r}")
            self.struct(field.struct, item)

    def tags(self, tagged: list[Field], var: str) -> None:
        """Write the tag section: fields that differ from their default, by ascending tag."""
        tests = [self.is_default(field, f"{var}.{field.name}") for field in tagged]
        joined = " and ".join(f"({test})" if " or " in test else test for test in tests)
        with self.block(f"if {joined}:"):
            self.line(f"{self.out}.append(0)")
        with self.block("else:"):
            tags, content, outer = self.fresh("tags"), self.fresh("content"), self.out
            self.line(f"{tags} = []")
            for field, test in zip(tagged, tests, strict=True):
                with self.block(f"if not ({test}):"):
                    self.line(f"{content} = bytearray()")
                    self.out = content
                    self.field(field, f"{var}.{field.name}")
                    self.flush()
                    self.line(f"{tags}.append(({field.tag}, {content}))")
                    self.out = outer
            self.line(f"append_tags({outer}, {tags})")

    def is_default(self, field: Field, value: str) -> str:
        """A test for "equals the default", which is then not sent."""
        blank = field.blank()
        if field.struct is not None and field.kind == "struct":
            name = self.constant("blank_" + field.name, field.struct.blank())
            if field.nullable is not None:
                return f"{value} == {name}"
            return f"{value} is None or {value} == {name}"
        if blank is None:
            return f"{value} is None"
        if field.kind.startswith("[]") and field.nullable is None:
            return f"not {value}"
        return f"{value} == {blank!r}"


def main(arguments: list[str]) -> int:
    """Print the code of `Produce 9`: request and response, both directions; or of one record."""
    from wire.messages import find

    try:
        name, version = arguments[0], int(arguments[1])
        classes = find(name)
    except (IndexError, ValueError):
        sys.stderr.write(
            "usage: python -m wire.codec Produce 9    (an API or a record, a version)\n"
        )
        return 2
    except KeyError:
        sys.stderr.write(
            f"usage: python -m wire.codec Produce 9    (nothing is called {name!r}; wire/messages"
            " has all names)\n"
        )
        return 2
    for cls in classes:
        if not cls.versions[0] <= version <= cls.versions[1]:
            low, high = cls.versions
            sys.stderr.write(f"{cls.__name__} has versions {low} to {high}\n")
            return 2
        for writer in (_DecoderWriter(cls, version), _EncoderWriter(cls, version)):
            sys.stdout.write(writer.source() + "\n\n")
    return 0


if __name__ == "__main__":
    try:
        exit_code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        sys.stdout, exit_code = None, 0  # or Python flushes once more, and complains
    sys.exit(exit_code)
