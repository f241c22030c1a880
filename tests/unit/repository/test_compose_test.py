"""What ``make compose-test`` puts over docker-compose.yml: it tests what is shipped, and all of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamwarden.model.profile import Profile
from tests.compose.__main__ import planned
from tests.compose.engine import IMAGE
from tests.compose.faults import FAULTS, effective
from tests.compose.stack import paced
from tests.compose.stand_in import BASES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
HERE = ROOT / "tests" / "compose"
ALL: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
SERVICES = {name: service for name, service in ALL.items() if "profiles" not in service}
OVERRIDE: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "override.yml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize("name", ["cluster", "compose_s3"])
def test_profile_is_the_shipped_one_but_for_its_pace(name: str) -> None:
    shipped = yaml.safe_load((ROOT / "config" / "profiles" / f"{name}.yaml").read_text(encoding="utf-8"))
    tested = yaml.safe_load(paced(name))
    assert tested.pop("jobs")["interval"] == "5s"
    assert Profile.model_validate(tested) == Profile.model_validate(shipped)


def test_services_are_as_shipped_but_for_the_profile() -> None:
    assert set(OVERRIDE) - set(SERVICES) == {"looker", "spark-worker-2"}
    assert all(set(OVERRIDE[name]) == {"volumes"} for name in set(OVERRIDE) & set(SERVICES))


def test_the_second_worker_is_the_first_under_another_name() -> None:
    second, first = OVERRIDE["spark-worker-2"], SERVICES["spark-worker"]
    assert second["extends"] == {"file": "docker-compose.yml", "service": "spark-worker"}
    assert set(second) == {"extends", "profiles", "hostname", "command"}
    assert [part.replace("spark-worker-2", "spark-worker") for part in second["command"]] == first["command"]


def test_every_lasting_service_has_a_fault() -> None:
    lasting = {name for name, service in SERVICES.items() if service.get("restart") == "unless-stopped"}
    named = {name.removesuffix("-killed") for name in FAULTS if name.endswith("-killed")}
    assert {name.removeprefix("airflow-").removeprefix("spark-") for name in lasting} <= named


def test_one_of_each_fault_before_any_comes_twice() -> None:
    known = effective("cluster")
    assert planned(str(len(known)), seed=1, profile="cluster") == known
    many = planned("100", seed=1, profile="cluster")
    assert len(many) == 100 and many == planned("100", seed=1, profile="cluster")
    with pytest.raises(SystemExit, match="meteor"):
        planned("worker-killed,meteor", seed=1, profile="cluster")


def test_a_profile_has_no_faults_of_what_it_does_not_use() -> None:
    assert set(FAULTS) - set(effective("cluster")) == {"s3-killed"}
    assert all("worker" not in name and "master" not in name for name in effective("compose_s3"))
    assert set(effective("cluster")) | set(effective("compose_s3")) == set(FAULTS)
    with pytest.raises(SystemExit, match="s3-killed"):
        planned("s3-killed", seed=1, profile="cluster")


def test_base_images_have_the_names_that_the_files_use() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    # Grafana has no package in Debian: it is tested only where its image can be pulled.
    used = {service["image"] for name, service in ALL.items() if name != "grafana"} - {IMAGE} | set(
        re.findall(r"^FROM (\S+)", dockerfile, re.M)
    )
    assert {tag.removeprefix("docker.io/").removeprefix("library/") for tag in BASES.values()} == used
