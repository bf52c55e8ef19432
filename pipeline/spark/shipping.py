"""Modules that travel to Spark's executors inside the job, so that nothing is installed there.

Cloudpickle sends functions and classes of a module it was told of by value: their code, not their
name. The module must then import nothing of ours but others that travel too, and import those
relatively (`from .crc import ...`), for it has another name in an installed wheel.

Packages that executors may lack travel as a file beside them: Python only, no compiled parts.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship(*modules: ModuleType) -> None:
    """Let Spark carry these modules to its executors by value."""
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def carry(spark: SparkSession, name: str, packages: Sequence[str]) -> None:
    """Give executors a file `name` of packages of this process (`SparkFiles.get(name)`).

    Spark Connect has no SparkContext to do it with: there executors need packages of their own.
    """
    try:
        context = spark.sparkContext
    except Exception:
        return
    folder: Any = context._temp_dir
    archive = Path(folder, name)
    if archive.exists():
        return
    draft = archive.with_name(f"{name}.tmp")
    with zipfile.ZipFile(draft, "w") as file:
        for package in packages:
            _add(file, package)
    draft.replace(archive)  # half of it would be taken for all
    context.addFile(str(archive))


def _add(file: zipfile.ZipFile, package: str) -> None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return
    inside = package.replace(".", "/")
    if "/" in inside:
        file.writestr(inside.rpartition("/")[0] + "/", "")  # a namespace is found by its folder
    folder = Path(spec.origin).parent
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".json"):
            file.write(path, os.path.join(inside, path.relative_to(folder)))
