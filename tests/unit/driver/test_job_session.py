"""The settings of a job's session, by where its JVM is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamwarden.driver import job_session
from streamwarden.driver.job_session import cluster_settings, start_session
from streamwarden.model.spec import JobSpec
from streamwarden.spark import conditional_put, session
from tests.batches import make_place

pytestmark = pytest.mark.unit

YARN = {"launcher": "yarn", "master": "yarn", "yarn": {"resource_managers": ["http://rm:8088"]}}


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "lamp",
            "module": "m",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": "lamp", "mode": "append"}],
            "resources": {"cores": 4, "memory": "2g"},
            **fields,
        }
    )


@pytest.fixture(autouse=True)
def jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "require", lambda *_: [Path("/jars/a.jar")])
    monkeypatch.setattr(conditional_put, "jar", lambda: Path("/jars/put.jar"))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(job_session, "build_session", lambda name, **given: made.append({"name": name, **given}))
    return made


def test_a_submission_asks_for_one_executor_with_all_cores(tmp_path: Path) -> None:
    settings = cluster_settings(make_place(tmp_path, **YARN), spec())
    assert (settings["spark.executor.instances"], settings["spark.executor.cores"]) == ("1", "4")
    assert settings["spark.driver.memory"] == "2g" and "spark.cores.max" not in settings
    assert "-Duser.timezone=UTC" in settings["spark.driver.extraJavaOptions"]
    assert settings["spark.app.name"] == "streamwarden lamp"


def test_a_standby_driver_works_where_it_is_if_a_cluster_starts_drivers(
    tmp_path: Path, built: list[dict[str, Any]]
) -> None:
    place = make_place(tmp_path, **YARN, spark={"spark.yarn.archive": "hdfs:///spark"})
    place.log_dir("lamp", "i1").mkdir(parents=True)
    start_session(place, spec(), "i1")
    (given,) = built
    assert given["master"] == "local[4]" and "spark.yarn.archive" not in given["settings"]


def test_a_driver_of_a_cluster_sets_what_its_jvm_still_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Any] = []
    monkeypatch.setattr(job_session, "join_session", lambda *given: joined.append(given))
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    place = make_place(tmp_path, **YARN)
    start_session(place, spec(), "i1")
    ((_, settings, _),) = joined
    assert settings["spark.sql.shuffle.partitions"] and settings["spark.executor.instances"] == "1"
    # The JVM logs where its cluster keeps it.
    assert not place.log_dir("lamp", "i1").exists()
