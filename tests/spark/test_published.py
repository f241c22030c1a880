"""Spark reads and streams a published table as any other, and never a version that the gate holds."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from delta.tables import DeltaTable

from streamwarden.driver.pipeline.source import missing_source, open_source
from streamwarden.model.gate import Verdict
from streamwarden.model.spec import JobSpec
from streamwarden.quality.gate import Gate
from streamwarden.store.layout import published_key
from streamwarden.store.workspace import open_workspace

pytestmark = pytest.mark.spark

START = datetime(2023, 3, 6, 8, tzinfo=UTC)
COLUMNS = "start timestamp, zone int"
SUITE = {
    "name": "windows",
    "meta": {"keys": ["start", "zone"]},
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "zone", "min_value": 1, "max_value": 265},
            "severity": "critical",
            "meta": {"id": "zone"},
        }
    ],
}


class Place:
    def __init__(self, spark, folder):
        (folder / "expectations").mkdir()
        (folder / "expectations" / "windows.json").write_text(json.dumps(SUITE))
        self.spark, self.folder = spark, folder
        self.workspace = open_workspace("local", root=folder / "root")
        self.gate = Gate(self.workspace, folder / "expectations")
        self.table = self.workspace.table("windows")
        self.published = self.workspace.uri(published_key("windows"))
        self.hour = 0

    def write(self, *zones, **options):
        self.hour += 1
        rows = self.spark.createDataFrame([(START + timedelta(hours=self.hour), zone) for zone in zones], COLUMNS)
        rows.coalesce(1).write.format("delta").mode("append").options(**options).save(self.table)

    def decide(self, **options):
        return self.gate.decide("windows", **options).verdict

    def read(self):
        return sorted(row.zone for row in self.spark.read.format("delta").load(self.published).collect())

    def stream(self):
        """Read what is new, as a job that is started and stopped; return its rows so far."""
        out, checkpoint = str(self.folder / "out"), str(self.folder / "checkpoint")
        rows = self.spark.readStream.format("delta").option("skipChangeCommits", "true").load(self.published)
        query = rows.writeStream.format("delta").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.start(out).awaitTermination()
        return sorted(row.zone for row in self.spark.read.format("delta").load(out).collect())


@pytest.fixture
def place(spark, tmp_path):
    return Place(spark, tmp_path)


def test_a_stream_over_a_published_table_gets_each_row_once_and_no_held_one(place):
    place.write(1, 2)
    # The first published version is not the table's first: it is behind a checkpoint of Spark's.
    place.spark.sql(f"ALTER TABLE delta.`{place.table}` SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    place.write(3)
    assert list((place.folder / "root/tables/windows/_delta_log").glob("*.checkpoint.parquet"))
    assert place.decide() is Verdict.PUBLISHED
    assert (place.read(), place.stream()) == ([1, 2, 3], [1, 2, 3])
    place.write(4)
    place.write(5)
    assert place.decide() is Verdict.PUBLISHED
    assert (place.read(), place.stream()) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    place.write(300)
    place.write(6)
    assert place.decide() is Verdict.HELD
    assert (place.read(), place.stream()) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    # Rearranged files carry no new rows for a stream.
    place.gate.accept("windows", by="ann", note="so be it")
    DeltaTable.forPath(place.spark, place.table).optimize().executeCompaction()
    place.write(7)
    assert place.decide() is Verdict.PUBLISHED
    assert place.stream() == place.read() == [1, 2, 3, 4, 5, 6, 7, 300]


def test_a_merge_and_a_restore_are_published_as_their_net_change(place):
    place.write(1, 2)
    assert place.decide() is Verdict.PUBLISHED
    place.write(300)
    table = DeltaTable.forPath(place.spark, place.table)
    table.update("zone = 300", {"zone": "3"})
    assert place.decide() is Verdict.PUBLISHED
    assert place.read() == [1, 2, 3]
    table.restoreToVersion(0)
    assert place.decide() is Verdict.PUBLISHED
    assert place.read() == [1, 2]
    versions = place.spark.sql(f"DESCRIBE HISTORY delta.`{place.published}`").collect()
    assert [row.version for row in versions] == [3, 2, 1, 0]
    # Version 1 has shown the bad row in the table, and never in the published one.
    old = place.spark.read.format("delta").option("versionAsOf", 1).load(place.published)
    assert sorted(row.zone for row in old.collect()) == [1, 2]


def test_a_table_with_deletion_vectors_is_checked_by_spark(place):
    place.spark.sql(
        f"CREATE TABLE delta.`{place.table}` ({COLUMNS}) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    place.write(*range(1, 100))
    assert place.decide() is Verdict.PUBLISHED
    place.write(300)
    DeltaTable.forPath(place.spark, place.table).delete("zone < 90")
    assert place.decide() is Verdict.HELD
    DeltaTable.forPath(place.spark, place.table).delete("zone = 300")
    assert place.decide(again=True) is Verdict.PUBLISHED
    assert place.read() == list(range(90, 100))


def test_a_job_reads_published_versions_only(place):
    spec = JobSpec.model_validate(
        {
            "name": "reader",
            "module": "spark_jobs.zone_running_stats",
            "source": {"kind": "delta", "table": "windows", "published": True},
            "sinks": [{"table": "out", "mode": "append"}],
            "trigger": {"interval": "1s"},
        }
    )
    assert "nothing of source table windows is published yet" in missing_source(place.spark, place.workspace, spec)
    place.write(1, 2)
    place.decide()
    place.write(300)
    assert place.decide() is Verdict.HELD
    assert missing_source(place.spark, place.workspace, spec) is None
    rows = open_source(place.spark, place.workspace, spec, "source")
    found = []
    query = rows.writeStream.foreachBatch(lambda batch, _: found.extend(row.zone for row in batch.collect()))
    query.option("checkpointLocation", str(place.folder / "c")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(found) == [1, 2]
