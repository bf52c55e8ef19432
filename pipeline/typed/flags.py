"""The flags of decoded columns, for each command that has them; mistakes are told before Spark."""

from __future__ import annotations

import argparse
from urllib.parse import urlsplit

from pipeline.errors import EXIT_USAGE, PipelineError
from pipeline.typed.columns import SideOptions, TypedOptions, is_installed, read_schema
from pipeline.typed.decode import PACKAGES, values_of
from pipeline.typed.registry import Registry, RegistryError

_FORMATS = ["json", "avro", "protobuf", "string"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Hook the flags into a command."""
    group = parser.add_argument_group(
        "typed data", "decode keys and values into columns beside the raw bytes"
    )
    for name in ("value", "key"):
        group.add_argument(f"--{name}-format", choices=_FORMATS, help=f"what {name}s are")
        group.add_argument(
            f"--{name}-schema", metavar="FILE",
            help="Avro schema, JSON Schema, or set of protobuf descriptors",
        )  # fmt: skip
        group.add_argument(
            f"--{name}-message", metavar="NAME", help="protobuf: the message (the first one)"
        )
        group.add_argument(
            f"--{name}-subject", metavar="S", default=f"{{topic}}-{name}",
            help="subject in the registry (%(default)s)",
        )  # fmt: skip
    group.add_argument(
        "--registry", metavar="URL", help="schema registry, for sides without a schema file"
    )


def typed_options(arguments: argparse.Namespace) -> TypedOptions:
    """What the flags say. Raises PipelineError for what cannot work, registry included."""
    sides = tuple(
        _side(arguments, name) for name in ("key", "value") if vars(arguments)[f"{name}_format"]
    )
    for name in ("key", "value"):
        if vars(arguments)[f"{name}_format"] is None and (needless := _details(arguments, name)):
            raise _usage(f"{needless[0]} needs --{name}-format")
    asks = [side for side in sides if side.format != "string" and side.schema is None]
    if asks and arguments.registry is None:
        name = asks[0].name
        raise _usage(f"--{name}-format {asks[0].format} needs --{name}-schema or --registry")
    if arguments.registry is not None and not asks:
        raise _usage("--registry needs --value-format or --key-format of a side without a schema")
    if asks:
        _check_registry(arguments.registry)
    return TypedOptions(sides, arguments.registry)


def _details(arguments: argparse.Namespace, name: str) -> list[str]:
    """The flags that say more of a side, as far as they are given."""
    usual = {"schema": None, "message": None, "subject": _subject(name)}
    given = vars(arguments)
    return [f"--{name}-{what}" for what, value in usual.items() if given[f"{name}_{what}"] != value]


def _subject(name: str) -> str:
    return f"{{topic}}-{name}"


def _side(arguments: argparse.Namespace, name: str) -> SideOptions:
    given = vars(arguments)
    kind = given[f"{name}_format"]
    package = PACKAGES.get(kind)
    if package is not None and not is_installed(package):
        raise PipelineError(
            f"--{name}-format {kind} needs the package {package}; install it with: pip install"
            " 'barnabas[typed]'"
        )
    path, message = given[f"{name}_schema"], given[f"{name}_message"]
    if message is not None and kind != "protobuf":
        raise _usage(f"--{name}-message goes with --{name}-format protobuf")
    if path is None:
        return SideOptions(name, kind, None, message, given[f"{name}_subject"])
    if kind == "string":
        raise _usage(f"--{name}-format string takes no --{name}-schema")
    if f"--{name}-subject" in _details(arguments, name):
        raise _usage(f"--{name}-subject goes with --registry, --{name}-schema has no subjects")
    schema = read_schema(path, name, kind)
    try:
        values_of(kind, schema, message)
    except ValueError as error:
        raise PipelineError(f"--{name}-schema {path}: {error}") from None
    return SideOptions(name, kind, schema, message)


def _check_registry(url: str) -> None:
    for one in url.split(","):
        if not _is_address(one.strip()):
            host = one.rpartition("@")[2]  # what may stand before it is nobody's business
            raise _usage(f"--registry {host}: expected http://HOST:PORT or https://HOST:PORT")
    try:
        Registry(url, tries=1).check()
    except RegistryError as error:
        raise PipelineError(str(error)) from None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # such as half of the brackets of IPv6
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _usage(message: str) -> PipelineError:
    return PipelineError(message, EXIT_USAGE)
