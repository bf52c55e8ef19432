"""What a session of Spark is set to, beside what a person configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.spark import session


def test_what_a_person_configured_for_spark_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a cluster\nspark.master   spark://head:7077\nspark.ui.enabled=true\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS", "--conf spark.a='b c' --packages org:avro:1 pyspark-shell"
    )
    configured = session._configured()
    made = session._settings(configured, {"spark.sql.x": "1"}, None, session._packages(True, ()))
    assert made["spark.master"] == "spark://head:7077"
    assert "spark.ui.enabled" not in made
    assert made["spark.jars.packages"] == f"org:avro:1,{session.connector()}"
    assert configured["spark.a"] == "b c"
    assert made["spark.sql.session.timeZone"] == "UTC"
    assert session._settings(configured, {}, "local[2]", [])["spark.master"] == "local[2]"


def test_spark_is_given_what_a_table_format_needs_beside_what_a_person_configured() -> None:
    configured = {
        "spark.sql.extensions": "org.Mine",
        "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.1",
    }
    made = session._settings(configured, {}, None, session._packages(True, ["delta"]))
    assert made["spark.sql.extensions"] == "org.Mine,io.delta.sql.DeltaSparkSessionExtension"
    assert made["spark.jars.packages"] == (f"io.delta:delta-spark_2.13:4.0.1,{session.connector()}")
    plain = session._settings({}, {}, None, session._packages(True, ["iceberg"]))
    assert "spark.sql.extensions" not in plain
    assert plain["spark.jars.packages"].endswith(
        ",org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"
    )
