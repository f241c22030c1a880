"""docs/observability.md lists every metric and every column as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from streamwarden.driver.metrics import _STORE, METRICS, DriverMetrics, DriverView
from streamwarden.formats.progress_table import COLUMNS
from streamwarden.model.status import DriverState
from streamwarden.supervision.health_rules import Health
from tests.batches import made_batch

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "observability.md").read_text()


def rows(first: str) -> list[tuple[str, ...]]:
    """Return the rows of the table whose first column has this heading."""
    table = re.search(rf"^\| {first} \|.*\n\|[ -|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None
    return [tuple(cell.strip().replace("`", "") for cell in line[1:-1].split("|")) for line in table[1].splitlines()]


def exported() -> set[tuple[str, str]]:
    """Return name and kind of what Prometheus is given."""
    registry = CollectorRegistry()
    metrics = DriverMetrics(
        MeterProvider([PrometheusMetricReader(registry=registry)]),
        "lamp",
        lambda: DriverView(DriverState.RUNNING, 1, 0, False),
        Health,
    )
    operator = made_batch(0).operators[0].model_copy(update={"metrics": dict.fromkeys(_STORE, 1)})
    metrics.batch(made_batch(0, operators=[operator]))
    families = [family for family in registry.collect() if family.name != "target"]
    return {(family.name + ("_total" if family.type == "counter" else ""), family.type) for family in families}


def test_every_metric_is_listed_as_prometheus_shows_it() -> None:
    listed = rows("metric")
    assert {(name, kind) for name, kind, _, _ in listed} == exported()
    assert [(kind, labels, text) for _, kind, labels, text in listed] == [
        (kind.type, ", ".join(kind.labels), kind.text) for kind in METRICS.values()
    ]


def test_every_column_is_listed() -> None:
    names = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long", pa.float64(): "double"}

    def shown(kind: pa.DataType) -> str:
        return "array of struct" if pa.types.is_list(kind) else names.get(kind, "timestamp")

    assert rows("column") == [(name, shown(kind), text) for name, (kind, text) in COLUMNS.items()]
