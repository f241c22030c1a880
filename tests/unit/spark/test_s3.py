"""What a Spark session gets for S3, and what it doesn't get without."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from streamwarden.spark.jars import pinned, require
from streamwarden.spark.s3 import s3_settings
from streamwarden.storage import S3Location

pytestmark = pytest.mark.unit


def test_a_session_on_disk_loads_none_of_the_jars_for_s3_or_kafka() -> None:
    plain, with_s3, with_kafka = require(), require("s3"), require("kafka")
    assert len(plain) == 2 and set(with_s3) & set(with_kafka) == set(plain) < set(with_s3)
    assert {jar.use for jar in pinned()} == {"", "s3", "kafka"}
    assert len(require("s3", "kafka")) == len(pinned()) and set(with_kafka) > set(plain)


def test_no_pinned_jar_repeats_one_of_pysparks() -> None:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    shipped = {path.name.rpartition("-")[0] for path in (Path(spec.origin).parent / "jars").glob("*.jar")}
    assert shipped and not {jar.artifact for jar in pinned()} & shipped


def test_a_server_of_ones_own_is_addressed_by_path() -> None:
    settings = s3_settings(S3Location("b", endpoint="http://host:7070", region="r"))
    assert settings["spark.hadoop.fs.s3a.endpoint"] == "http://host:7070"
    assert settings["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "false"
    assert settings["spark.hadoop.fs.s3a.endpoint.region"] == "r"


def test_amazons_is_found_by_its_region_and_no_secret_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-seen")
    settings = s3_settings(S3Location("b", region="eu-central-1"))
    assert not any(key.endswith((".endpoint", ".path.style.access", "key")) for key in settings)
    assert "not-to-be-seen" not in str(settings)
