"""`barnabas.register_source(spark)`: `format("barnabas")` in a Spark session of the user's own; and
`barnabas.archive_files(DIR)`, which needs no Spark.

An installed wheel keeps the pipeline in `barnabas/_app`; it is imported from there under that name,
so that neither the name `pipeline` nor that of any broker package is claimed in the user's process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from barnabas.launch import app_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_source(spark: SparkSession) -> None:
    """See `barnabas.register_source`."""
    if not hasattr(spark, "dataSource"):
        raise ImportError("format(\"barnabas\") needs PySpark 4: pip install 'barnabas[spark]'")
    _pipeline("data_source").register(spark)


def archive_files(directory: str) -> list[str]:
    """See `barnabas.archive_files`."""
    files: list[str] = _pipeline("archive.listing").data_files(directory)
    return files


def _pipeline(module: str) -> Any:
    package = "barnabas._app.pipeline" if app_dir().name == "_app" else "pipeline"
    return importlib.import_module(f"{package}.{module}")
