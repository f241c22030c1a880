"""Compare the tables of any example job with a batch computation, while or after it runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyc_taxi.demo import patterns
from nyc_taxi.demo.compare import Difference, compare_rows
from nyc_taxi.demo.payments import compare_trip_payments, expected_trip_payments
from nyc_taxi.demo.statistics import (
    compare_card_statistics,
    compare_zone_running_stats,
    expected_card_statistics,
    expected_zone_running_stats,
)
from nyc_taxi.demo.velocity import compare_card_alerts, compare_card_velocity, expected_card_velocity
from nyc_taxi.demo.verify import read_table
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.durations import parse_duration
from streamwarden.model.spec import JobSpec
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace

__all__ = ["COMPARISONS"]

Comparison = Callable[[Workspace, JobSpec], list[Difference]]


def _trips(workspace: Workspace) -> pa.Table:
    return read_table(workspace, "trips")


def _velocity(workspace: Workspace, spec: JobSpec) -> list[Difference]:
    trips, given = _trips(workspace), spec.options
    window, every, within = (parse_duration(given[name]) for name in ("window", "every", "within"))
    expected = expected_card_velocity(trips, window=window, every=every)
    alerts = read_table(workspace, "card_alerts")
    return [
        compare_card_velocity(expected, read_table(workspace, "card_velocity")),
        compare_card_alerts(trips, alerts, burst=given["trips"], within=within),
    ]


def _payments(workspace: Workspace, spec: JobSpec) -> list[Difference]:
    """Compare the rows whose counterpart can't come any more: the others still wait in the state."""
    within = parse_duration(spec.options["settles_within"])
    watermark = _watermark(workspace, spec.name)

    def decided(rows: pa.Table) -> pa.Table:
        # A trip waits for `within`, a payment until its own time.
        trip = pc.less(rows["lpep_pickup_datetime"], pa.scalar(watermark - within, pa.timestamp("us", "UTC")))
        payment = pc.less(rows["settled_at"], pa.scalar(watermark, pa.timestamp("us", "UTC")))
        return rows.filter(pc.and_(trip, pc.fill_null(payment, fill_value=True)))

    expected = expected_trip_payments(
        _trips(workspace), read_table(workspace, "payments"), join=spec.options["join"], settles_within=within
    )
    expected = decided(expected.cast(_with_zones(expected.schema)))
    return [compare_trip_payments(expected, decided(read_table(workspace, "trip_payments")))]


def _with_zones(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [pa.field(one.name, pa.timestamp("us", "UTC")) if pa.types.is_timestamp(one.type) else one for one in schema]
    )


def _watermark(workspace: Workspace, job: str) -> datetime:
    """Return the watermark of a job's last batch, from its checkpoint. Progress documents are written later."""
    reference = JobDocuments(workspace.storage, job).checkpoint.read()
    assert reference is not None
    checkpoint = CheckpointReader(workspace.storage, reference.path)
    last = checkpoint.last_commit()
    offsets = None if last is None else checkpoint.offsets(last)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=offsets.watermark_ms if offsets else 0)


def _dedup(workspace: Workspace, _: JobSpec) -> list[Difference]:
    delivered = read_table(workspace, "payments_delivered")
    # Repeats are equal in every column.
    expected = delivered.group_by(delivered.column_names).aggregate([])
    return [
        compare_rows("payments", expected, read_table(workspace, "payments"), ["payment_id"], expected.column_names)
    ]


def _features(workspace: Workspace, spec: JobSpec) -> list[Difference]:
    found = read_table(workspace, "zone_features")
    expected = patterns.expected_zone_features(_trips(workspace), found, step=parse_duration(spec.options["step"]))
    return [patterns.compare_zone_features(expected, found)]


def _leaderboard(workspace: Workspace, spec: JobSpec) -> list[Difference]:
    expected = patterns.expected_zone_leaderboard(
        _trips(workspace), window=parse_duration(spec.options["window"]), places=spec.options["places"]
    )
    return [patterns.compare_zone_leaderboard(expected, read_table(workspace, "zone_leaderboard"))]


def _series(table: str) -> Comparison:
    def compare(workspace: Workspace, spec: JobSpec) -> list[Difference]:
        given: dict[str, Any] = spec.options
        window, every = parse_duration(given["window"]), parse_duration(given["every"])
        columns: dict[str, Any] = {name: given.get(name) for name in ("key", "value", "weight")}
        windows = patterns.expected_rolling_windows(
            read_table(workspace, table),
            **columns,
            window=window,
            every=every,
        )
        found = read_table(workspace, spec.delta_sinks[0].table)
        final = pa.scalar(_watermark(workspace, spec.name).replace(tzinfo=None), pa.timestamp("us"))
        ended = windows.filter(pc.less_equal(windows["window_end"], final))
        alerts = patterns.expected_rolling_alerts(ended, high=given["high"], low=given["low"])
        return [
            patterns.compare_rolling_windows(windows, found),
            patterns.compare_rolling_alerts(alerts, read_table(workspace, spec.delta_sinks[1].table)),
        ]

    return compare


COMPARISONS: dict[str, Comparison] = {
    "card_velocity": _velocity,
    "card_statistics": lambda workspace, _: [
        compare_card_statistics(expected_card_statistics(_trips(workspace)), read_table(workspace, "card_statistics"))
    ],
    "zone_running_stats": lambda workspace, _: [
        compare_zone_running_stats(
            expected_zone_running_stats(_trips(workspace)), read_table(workspace, "zone_running_stats")
        )
    ],
    "trip_payments": _payments,
    "dedup_events": _dedup,
    "zone_features": _features,
    "zone_leaderboard": _leaderboard,
    "sensor_metrics": _series("sensor_readings"),
    "trade_metrics": _series("trades"),
}
"""The comparison of each job, which returns one difference a table."""
