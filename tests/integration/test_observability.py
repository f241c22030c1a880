"""What a driver, a real process, says to a Prometheus, to a collector, in its log and in the table of batches."""

from __future__ import annotations

import json
import urllib.request
from datetime import datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from streamwarden.cli.app import app
from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.progress import BatchProgress
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.status import job_status
from streamwarden.runtime.processes import kill
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation, Phase
from tests.http_receiver import wait_until
from tests.integration.conftest import BY, Place, log_of
from tests.otlp_collector import Collector

pytestmark = pytest.mark.integration

FAST = {"every": "300ms", "batches": 20}
NEVER = {"every": "1h", "batches": 40}


def scraped(address: str) -> dict[str, float]:
    """Return samples by name, with the labels other than the job's."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    found = {}
    for sample in samples:
        labels = dict(sample.labels)
        if sample.name.startswith("streamwarden"):
            assert labels.pop("job") == "numbers"
        found[sample.name + "".join(f" {name}={value}" for name, value in sorted(labels.items()))] = sample.value
    return found


def at_batch(place: Place, batch: int) -> Observation:
    """Wait for the report of a batch by the driver that runs now."""
    return place.wait(
        "numbers",
        # The heartbeat tells last, when the metrics have it, too.
        lambda seen: bool(
            (seen.heartbeat and seen.heartbeat.batch == batch)
            and (seen.progress and seen.progress.last and seen.progress.last.batch == batch)
        ),
        f"the report of batch {batch}",
    )


def reported(place: Place) -> list[tuple[str, BatchProgress]]:
    """Return every batch of every incarnation's progress document, oldest first."""
    documents = place.documents("numbers")
    found = []
    for incarnation in documents.incarnations():
        progress = documents.progress(incarnation).read()
        found += [(incarnation, done) for done in progress.recent] if progress else []
    return found


def written(place: Place) -> list[dict[str, Any]]:
    try:
        return ProgressTable(place.workspace).read("numbers")
    except StreamwardenError as error:
        # The recorder makes it, in a thread of its own.
        if error.code == "PROGRESS_TABLE_MISSING":
            return []
        raise


def assert_equal(place: Place, *, generation: int = 1) -> None:
    """The table says of each batch what the documents say, and nothing else."""
    rows = written(place)
    said = reported(place)
    assert [(row["incarnation"], row["batch"]) for row in rows] == [(name, done.batch) for name, done in said]
    for row, (_, done) in zip(rows, said, strict=True):
        document = done.model_dump(exclude={"source"})
        assert {name: row[name] for name in document} == document
        assert done.source is not None
        assert (row["source_unit"], row["source_taken"], row["source_pending"]) == (
            done.source.unit,
            done.source.taken,
            done.source.pending,
        )
        assert (row["job"], row["generation"]) == ("numbers", generation)


@pytest.mark.long
def test_metrics_logs_and_the_table_of_batches(place: Place) -> None:
    with Collector() as collector:
        metrics = {"prometheus": {}, "otlp": {"endpoint": collector.endpoint, "interval": "300ms"}}
        place.profile(metrics=metrics, progress_table=FAST, logs={"format": "json"}, jobs={"interval": "200ms"})
        place.numbers()
        for number in range(3):
            place.land(f"{number}.txt", b"x" * (number + 1))
        deploy_job(place.workspace, "numbers", by=BY)
        seen = at_batch(place, 2)
        assert seen.heartbeat is not None and seen.heartbeat.metrics.startswith("127.0.0.1:")
        assert job_status(place.workspace, "numbers")["metrics"] == seen.heartbeat.metrics

        found = scraped(seen.heartbeat.metrics)
        assert found["streamwarden_batches_total"] == found["streamwarden_rows_in_total"] == 3
        assert found["streamwarden_batch_duration_seconds_count"] == 3
        durations = sum(done.duration_ms for _, done in reported(place)) / 1000
        assert found["streamwarden_batch_duration_seconds_sum"] == pytest.approx(durations)
        assert found["streamwarden_source_pending unit=files"] == 0
        assert found["streamwarden_driver_state state=running"] == 1
        assert found["streamwarden_generation"] == 1
        assert found["streamwarden_health rule=no_batch"] == found["streamwarden_health rule=backlog"] == 0

        attributes, _ = collector.await_sum("streamwarden.batches", 3)
        assert (attributes["service.name"], attributes["job"]) == ("streamwarden", "numbers")
        assert attributes["incarnation"] == seen.incarnation

        # Written while it runs, without a stop.
        wait_until(lambda: len(written(place)) == 3)
        place.land("3.txt")
        at_batch(place, 3)
        assert driver_control.stop(place.workspace, "numbers", by=BY).phase is Phase.STOPPED
        # What came after the last export is in the one that a stop makes.
        collector.await_sum("streamwarden.batches", 4, timeout=0.1)
    assert job_status(place.workspace, "numbers")["metrics"] is None
    assert len(written(place)) == 4
    assert_equal(place)

    # The last line comes after the end is on record.
    wait_until(lambda: "stopped after batch 3" in log_of(place, "numbers"))
    records = [json.loads(line) for line in log_of(place, "numbers").splitlines()]
    assert {(record["job"], record["incarnation"]) for record in records} == {("numbers", seen.incarnation)}
    assert [record["batch"] for record in records if record["message"] == "outputs of a batch"] == [0, 1, 2, 3]
    assert records[0]["batch"] is None and datetime.fromisoformat(records[0]["time"]).tzinfo is not None
    shown = CliRunner().invoke(app, ["logs", "numbers", "--root", str(place.workspace.root)], env=of(place))
    assert shown.exit_code == 0 and f" INFO numbers {seen.incarnation} stopped after batch 3\n" in shown.output


@pytest.mark.long
def test_rows_that_a_killed_driver_did_not_write_are_written_by_the_next(place: Place) -> None:
    place.profile(progress_table=NEVER, jobs={"interval": "200ms"})
    place.numbers()
    for number in range(3):
        place.land(f"{number}.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    seen = at_batch(place, 2)
    assert seen.heartbeat is not None and kill(seen.heartbeat.process)
    dead = place.wait("numbers", lambda now: not now.phase.alive, "its death")
    assert dead.phase is Phase.DEAD
    assert not (place.workspace.root / "tables" / "job_progress").exists()

    place.land("3.txt")
    deploy_job(place.workspace, "numbers", by=BY)
    # Before its own, which wait for their hour, or for the stop.
    at_batch(place, 3)
    wait_until(lambda: len(written(place)) == 3)
    assert {row["incarnation"] for row in written(place)} == {seen.incarnation}
    assert driver_control.stop(place.workspace, "numbers", by=BY).phase is Phase.STOPPED
    assert len(written(place)) == 4
    assert_equal(place)

    shown = CliRunner().invoke(
        app, ["progress", "numbers", "--last", "2", "--json", "--root", str(place.workspace.root)], env=of(place)
    )
    assert [row["batch"] for row in json.loads(shown.output)] == [2, 3]


def of(place: Place) -> dict[str, str]:
    return {"STREAMWARDEN_CONFIG": str(place.config), "STREAMWARDEN_PROFILE": "test"}
