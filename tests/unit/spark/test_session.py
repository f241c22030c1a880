"""Which jars and options a session's JVMs get, by where they run."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamwarden.spark import class_archive, conditional_put, session

pytestmark = pytest.mark.unit


class Builder:
    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def appName(self, _: str) -> Builder:
        return self

    def config(self, key: str, value: str) -> Builder:
        self.settings[key] = value
        return self

    def getOrCreate(self) -> dict[str, Any]:
        return self.settings


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "classes.jsa").touch()
    monkeypatch.setattr(class_archive, "jar_dir", lambda: tmp_path)
    # What a session writes there ends with the test.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "POLARS_MAX_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(session, "find_java", lambda: "java")
    monkeypatch.setattr(
        session, "require", lambda use: [tmp_path / {"kafka": "kafka.jar", "s3": "s3.jar", "": "a.jar"}[use]]
    )
    monkeypatch.setattr(conditional_put, "jar", lambda: tmp_path / "put.jar")
    monkeypatch.setattr(session, "spark_jars", lambda: [tmp_path / "spark.jar"])
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=Builder()))
    return session.build_session


def test_executors_elsewhere_are_sent_the_jars(build: Any, tmp_path: Path) -> None:
    settings = build("a", master="spark://host:7077")
    assert settings["spark.jars"] == f"{(tmp_path / 'a.jar').as_uri()},{(tmp_path / 'put.jar').as_uri()}"
    assert not [name for name in settings if "extraClassPath" in name]
    assert not [name for name, value in settings.items() if ".jsa" in value]


def test_executors_of_the_same_image_find_jars_and_archive(build: Any, tmp_path: Path) -> None:
    own = {"spark.executor.extraJavaOptions": "-Da=b"}
    settings = build(
        "a", master="spark://host:7077", same_image=True, kafka=True, settings=own, java_options="-Ddriver"
    )
    path = f"{tmp_path / 'a.jar'}:{tmp_path / 'put.jar'}:{tmp_path / 'spark.jar'}"
    assert settings["spark.driver.extraClassPath"] == settings["spark.executor.extraClassPath"] == path
    # Kafka's are not on the path that the archive depends on.
    assert settings["spark.jars"] == (tmp_path / "kafka.jar").as_uri()
    options = settings["spark.executor.extraJavaOptions"]
    assert str(tmp_path / "classes.jsa") in options and options.endswith(" -Da=b") and "-Ddriver" not in options


def test_with_an_archive_of_s3s_class_path_alone_every_session_takes_that_path(build: Any, tmp_path: Path) -> None:
    (tmp_path / "classes.jsa").rename(tmp_path / "classes-s3.jsa")
    settings = build("a", master="local[2]")
    assert settings["spark.driver.extraClassPath"].startswith(str(tmp_path / "s3.jar"))
    assert str(tmp_path / "classes-s3.jsa") in settings["spark.driver.extraJavaOptions"]
    assert not [name for name in settings if name.startswith("spark.hadoop.fs.s3a")]


def test_executors_elsewhere_are_not_sent_jars_for_an_archive(build: Any, tmp_path: Path) -> None:
    (tmp_path / "classes.jsa").rename(tmp_path / "classes-s3.jsa")
    assert "s3.jar" not in build("a", master="spark://host:7077")["spark.jars"]


def test_a_local_session_has_no_executor_to_set_up(build: Any) -> None:
    assert not [name for name in build("a", master="local[2]", same_image=True) if "executor.extra" in name]


def test_a_session_in_cluster_mode_leaves_the_running_jvm_as_it_is(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    monkeypatch.setattr(session, "require", lambda *_: pytest.fail("there are no jars on a cluster's machine"))
    settings: Any = session.join_session("a", {"spark.sql.shuffle.partitions": "7"}, None)
    assert settings["spark.sql.shuffle.partitions"] == "7" and settings["spark.sql.session.timeZone"] == "UTC"
    settled = ("memory", "ClassPath", "JavaOptions", "spark.jars", "driver.host", "bindAddress")
    assert not [name for name in settings if any(part in name for part in settled)]
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


@pytest.mark.parametrize("same_image", [False, True])
def test_a_submission_settles_what_a_jvm_takes_at_its_start(build: Any, tmp_path: Path, same_image: bool) -> None:
    settings = session.start_settings(
        master="yarn", memory="2g", kafka=True, java_options="-Da=b", same_image=same_image, deploy_mode="cluster"
    )
    assert settings["spark.driver.memory"] == settings["spark.executor.memory"] == "2g"
    assert settings["spark.driver.extraJavaOptions"].endswith("-Da=b")
    # The machine's own name: executors are elsewhere.
    assert "spark.driver.host" not in settings and "spark.driver.bindAddress" not in settings
    own = [tmp_path / "a.jar", tmp_path / "put.jar"]
    if same_image:
        assert settings["spark.jars"] == f"local://{tmp_path / 'kafka.jar'}"
        assert settings["spark.driver.extraClassPath"] == ":".join(map(str, [*own, tmp_path / "spark.jar"]))
    else:
        assert settings["spark.jars"] == ",".join(path.as_uri() for path in [*own, tmp_path / "kafka.jar"])
        assert "spark.driver.extraClassPath" not in settings
