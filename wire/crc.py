"""CRC-32C (Castagnoli), the checksum of record batches and producer snapshots, computed in C.

`import crc32c` also imports importlib.metadata, argparse, email and mmap: 38 ms of a broker that
must be ready in a quarter of a second. All we need is one C function, so its extension module is
loaded without running the package around it (0.5 ms). Where that fails (a differently built
wheel) the plain import is used: same function, slower start.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class Crc32c(Protocol):
    """`value` is the checksum of the bytes before these: a checksum may be made in parts."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


def _load() -> Crc32c:
    package = PathFinder.find_spec("crc32c")
    if package is not None and package.submodule_search_locations:
        spec = PathFinder.find_spec("crc32c._crc32c", list(package.submodule_search_locations))
        if spec is not None and spec.loader is not None:
            module = spec.loader.create_module(spec)
            assert module is not None  # extension loaders always make their own
            spec.loader.exec_module(module)
            function: Crc32c = module.crc32c
            return function
    from crc32c import crc32c as plain

    return plain


crc32c: Crc32c = _load()
"""Checksum of any contiguous buffer, unsigned. Releases the GIL on large buffers."""
