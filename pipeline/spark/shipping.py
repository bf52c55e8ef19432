"""Modules that travel to Spark's executors inside the job, so that nothing is installed there.

Cloudpickle sends functions and classes of a module it was told of by value: their code, not their
name. The module must then import nothing of ours but others that travel too, and import those
relatively (`from .crc import ...`), for it has another name in an installed wheel.
"""

from __future__ import annotations

from types import ModuleType


def ship(*modules: ModuleType) -> None:
    """Let Spark carry these modules to its executors by value."""
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
