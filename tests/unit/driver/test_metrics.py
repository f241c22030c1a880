"""The values of metrics, from progress made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from streamwarden.driver import progress
from streamwarden.driver.metrics import _STORE, METRICS, DriverMetrics, DriverView
from streamwarden.model.status import DriverState
from streamwarden.supervision.health_rules import RULES, Finding, Health, Level
from tests.batches import START, made_batch

pytestmark = pytest.mark.unit

Points = dict[str, dict[tuple[tuple[str, Any], ...], Any]]


class Driver:
    """Metrics, the state that they show, and what a reader collects."""

    def __init__(self) -> None:
        self.view = DriverView(DriverState.STARTING, 0, 0, False)
        self.health: Health | None = Health()
        self._reader = InMemoryMetricReader()
        self.metrics = DriverMetrics(MeterProvider([self._reader]), "lamp", lambda: self.view, lambda: self.health)

    def read(self) -> Points:
        """Return points by metric, and by labels other than the job's, which each must have."""
        data = self._reader.get_metrics_data()
        assert data is not None
        ((scope,),) = [resource.scope_metrics for resource in data.resource_metrics]
        found: Points = {}
        for metric in scope.metrics:
            for point in metric.data.data_points:
                labels = dict(point.attributes or {})
                assert labels.pop("job") == "lamp"
                value = (point.count, point.sum) if hasattr(point, "bucket_counts") else point.value
                found.setdefault(metric.name, {})[tuple(sorted(labels.items()))] = value
        return found


def test_each_health_rule_has_its_level_and_none_where_it_can_t_be_told() -> None:
    driver = Driver()
    levels = driver.read()["streamwarden.health"]
    assert set(levels) == {(("rule", rule),) for rule in RULES} and set(levels.values()) == {0}
    driver.health = Health(
        (Finding("backlog", Level.CRITICAL, "an hour", 3600, 3600), Finding("late_rows", Level.WARN, "", 1, 1))
    )
    levels = driver.read()["streamwarden.health"]
    assert {labels[0][1]: level for labels, level in levels.items() if level} == {"backlog": 2, "late_rows": 1}
    driver.health = None
    assert "streamwarden.health" not in driver.read()


SAVE = (("operator", "0"), ("operator_name", "stateStoreSave"))
DEDUPE = (("operator", "1"), ("operator_name", "dedupe"))


def test_counters_and_histograms_add_up_and_gauges_are_of_the_newest_batch() -> None:
    driver = Driver()
    driver.metrics.batch(made_batch(4))
    driver.metrics.batch(made_batch(5, rows_in=1, rows_out=None, duration_ms=500, watermark_lag_s=3.0))
    found = driver.read()
    plain = {name: points[()] for name, points in found.items() if () in points}
    assert plain["streamwarden.batches"] == 2
    assert plain["streamwarden.rows.in"] == 101
    assert plain["streamwarden.rows.out"] == 80, "unknown counts for nothing"
    assert plain["streamwarden.rows.late"] == 6
    assert plain["streamwarden.rows.quarantined"] == 14
    assert plain["streamwarden.rows.duplicate"] == 10
    assert plain["streamwarden.batch.duration"] == (2, 3.0)
    assert plain["streamwarden.commit.duration"] == (2, pytest.approx(1.4))
    assert plain["streamwarden.checkpoint.duration"] == (2, pytest.approx(0.4))
    assert plain["streamwarden.batch.last"] == 5
    assert plain["streamwarden.batch.last.time"] == START.timestamp() + 5
    assert plain["streamwarden.batch.last.rate"] == 40
    assert plain["streamwarden.watermark.time"] == START.timestamp() - 1800
    assert plain["streamwarden.watermark.lag"] == 3.0
    assert found["streamwarden.source.pending"] == {(("unit", "files"),): 4}
    assert found["streamwarden.state.rows"] == {SAVE: 10, DEDUPE: 20}
    assert found["streamwarden.state.memory"] == {SAVE: 1000, DEDUPE: 2000}
    # Of now, and not a sum; and only of the operator that has it.
    assert found["streamwarden.rocksdb.sst.size"] == {SAVE: 77}
    assert found["streamwarden.rocksdb.cache.hits"][SAVE] == 18
    assert found["streamwarden.rocksdb.compaction.duration"][SAVE] == pytest.approx(3.0)


def test_before_the_first_batch_there_are_zeros_and_nothing_made_up() -> None:
    found = Driver().read()
    assert found["streamwarden.batches"][()] == found["streamwarden.tries.failed"][()] == 0
    for name in ("batch.last", "watermark.lag", "source.pending", "state.rows", "batch.duration"):
        assert f"streamwarden.{name}" not in found


def test_the_state_of_the_driver_is_read_when_it_is_collected() -> None:
    driver = Driver()
    driver.metrics.failed_try()
    driver.view = DriverView(DriverState.RETRYING, 3, 2, True)
    found = driver.read()
    states = {dict(labels)["state"]: value for labels, value in found["streamwarden.driver.state"].items()}
    assert states == {state.value: int(state is DriverState.RETRYING) for state in DriverState}
    assert found["streamwarden.generation"][()] == 3
    assert found["streamwarden.driver.failures"][()] == 2
    assert found["streamwarden.driver.idle"][()] == 1
    assert found["streamwarden.tries.failed"][()] == 1


def test_what_a_batch_does_not_know_is_left_out() -> None:
    driver = Driver()
    driver.metrics.batch(made_batch(0, watermark=None, watermark_lag_s=None, source=None, operators=[]))
    found = driver.read()
    for name in ("watermark.time", "watermark.lag", "source.pending", "state.rows"):
        assert f"streamwarden.{name}" not in found
    assert found["streamwarden.batch.last"][()] == 0


def test_every_metric_has_values_and_every_figure_of_a_store_a_metric() -> None:
    # Else one would be listed that nobody sets, or Spark's figures read that go nowhere.
    assert set(_STORE) == set(progress._STORE_METRICS)
    driver = Driver()
    operators = [made_batch(0).operators[0].model_copy(update={"metrics": dict.fromkeys(_STORE, 1)})]
    driver.metrics.batch(made_batch(0, operators=operators))
    assert set(driver.read()) == set(METRICS)
