"""What a job asks of a cluster, and whether it has got it."""

from __future__ import annotations

from typing import Any

import pytest

from streamwarden.driver.executors import Executors, executor_settings
from streamwarden.model.spec import ResourceSpec
from tests.unit.driver.made_executors import MadeExecutors

pytestmark = pytest.mark.unit

SPARK = "spark://host:7077"


@pytest.mark.parametrize(
    ("master", "resources", "settings"),
    [
        ("local[4]", {"cores": 4, "executors": 2}, {}),
        (SPARK, {"cores": 4}, {"spark.cores.max": "4"}),
        (SPARK, {"cores": 4, "executors": 2}, {"spark.cores.max": "4", "spark.executor.cores": "2"}),
        ("yarn", {"cores": 4}, {"spark.executor.instances": "1", "spark.executor.cores": "4"}),
        ("k8s://host", {"cores": 4, "executors": 4}, {"spark.executor.instances": "4", "spark.executor.cores": "1"}),
    ],
)
def test_executors_share_the_cores(master: str, resources: dict[str, Any], settings: dict[str, str]) -> None:
    assert executor_settings(master, ResourceSpec(**resources)) == settings


def test_executors_that_cannot_share_the_cores_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="3 cores can't be shared evenly by 2 executors"):
        ResourceSpec(cores=3, executors=2)


def test_a_cluster_without_slots_is_named_until_one_comes() -> None:
    made = MadeExecutors(SPARK, come=1)
    executors = Executors(made.session)
    assert f"{SPARK} has no free slots" in str(executors.missing())
    assert executors.missing() is None
    # Taken away again.
    made.come = 0
    assert executors.missing() is not None


def test_between_two_looks_the_jvm_is_not_asked() -> None:
    made = MadeExecutors(SPARK, come=1)
    executors = Executors(made.session)
    assert executors.missing(every=60) is not None and executors.missing(every=60) is not None and made.looks == 1


@pytest.mark.parametrize(
    "made",
    [
        MadeExecutors("local[2]", come=0),
        MadeExecutors(SPARK, come=0, spark_dynamicAllocation_enabled="true"),
    ],
)
def test_where_no_executor_is_to_come_before_there_is_work_none_is_missing(made: MadeExecutors) -> None:
    assert Executors(made.session).missing() is None and made.looks == 0


def test_a_jvm_that_is_gone_is_for_the_query_to_report() -> None:
    made = MadeExecutors(SPARK, come=0)
    del made.session.sparkContext._jsc
    assert Executors(made.session).missing() is None
