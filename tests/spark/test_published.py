"""Spark reads and streams a published table as any other, and never a version that the gate holds."""

import json
from datetime import UTC, datetime, timedelta

import deltalake
import pyarrow as pa
import pytest
from delta.tables import DeltaTable

from streamwarden.driver.pipeline.source import missing_source, open_source
from streamwarden.formats import published_log
from streamwarden.formats.published_log import PublishedLog
from streamwarden.model.gate import Verdict
from streamwarden.model.spec import JobSpec
from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_state
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
        folder.mkdir(exist_ok=True)
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

    def delta(self):
        return DeltaTable.forPath(self.spark, self.table)

    def compact(self):
        self.delta().optimize().executeCompaction()

    def check(self, *zones):
        """Readers get these rows, and so does delta-rs; each published version has the rows of one of the table's."""
        assert self.read() == sorted(zones)
        found = deltalake.DeltaTable(self.published)
        assert sorted(row["zone"] for row in pa.table(found.scan()).to_pylist()) == sorted(zones)
        log = PublishedLog(self.workspace, "windows")
        for number in log.versions():
            pair = ((self.published, number), (self.table, log.content(number)))
            one, other = (
                self.spark.read.format("delta").option("versionAsOf", version).load(path).groupBy().sum("zone").first()
                for path, version in pair
            )
            assert one == other, number

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


@pytest.mark.long
@pytest.mark.ci
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


@pytest.mark.long
@pytest.mark.ci
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


@pytest.mark.long
def test_spark_judges_keys_against_older_rows_and_rules_about_recent_rows(place):
    recent = {"recent": {"column": "start", "days": 3}}
    many = "SELECT zone FROM {batch} GROUP BY zone HAVING count(*) > 5"
    unknown = "SELECT b.zone FROM {batch} AS b LEFT ANTI JOIN {tables.zones} AS z ON z.zone = b.zone"
    rules = [
        ("expect_column_values_to_be_unique", {"column": "zone"}, {}),
        ("unexpected_rows_expectation", {"unexpected_rows_query": many}, recent),
        ("unexpected_rows_expectation", {"unexpected_rows_query": unknown}, {"tables": {"zones": None}}),
    ]
    expectations = [
        {"type": kind, "kwargs": kwargs, "severity": "critical", "meta": {"id": name, **meta}}
        for name, (kind, kwargs, meta) in zip(("key", "many", "known"), rules, strict=True)
    ]
    (place.folder / "expectations" / "windows.json").write_text(json.dumps({**SUITE, "expectations": expectations}))
    place.spark.range(1, 50).selectExpr("cast(id as int) AS zone").write.format("delta").save(
        place.workspace.table("zones")
    )
    place.spark.sql(
        f"CREATE TABLE delta.`{place.table}` ({COLUMNS}) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )

    def held():
        hold = gate_state(place.workspace, "windows").record.hold
        return {one.expectation: one.finding for one in hold.failures} if hold else {}

    place.write(1, 2)
    assert place.decide() is Verdict.PUBLISHED
    place.write(2, 3)
    assert place.decide() is Verdict.HELD
    assert set(held()) == {"key"}
    # What a person has accepted is older from now on, and no reason to hold other rows.
    place.gate.accept("windows", by="ann", note="so be it")
    place.write(4)
    assert place.decide() is Verdict.PUBLISHED
    place.write(60)
    assert place.decide() is Verdict.HELD
    assert set(held()) == {"known"}
    place.gate.accept("windows", by="ann", note="so be it")
    # Without new versions, too: the rule about recent rows is broken by another limit.
    expectations[1]["kwargs"]["unexpected_rows_query"] = many.replace("> 5", "> 1")
    (place.folder / "expectations" / "windows.json").write_text(json.dumps({**SUITE, "expectations": expectations}))
    assert place.decide(idle=True) is Verdict.HELD
    assert set(held()) == {"many"}


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


@pytest.mark.long
def test_a_stream_gets_appended_rows_of_ranges_with_changes_and_compactions_once(place):
    place.write(1, 2)
    place.write(9)
    assert place.decide() is Verdict.PUBLISHED
    assert place.stream() == [1, 2, 9]
    # Appended and deleted.
    place.write(3)
    place.delta().delete("zone = 9")
    place.write(4)
    assert place.decide() is Verdict.PUBLISHED
    assert place.stream() == [1, 2, 3, 4, 9]
    place.check(1, 2, 3, 4)
    # Appended, merged and compacted with older rows.
    place.write(5)
    source = place.spark.createDataFrame([(1, 101), (777, 6)], "old int, new int")
    place.delta().alias("t").merge(source.alias("s"), "t.zone = s.old").whenMatchedUpdate(
        set={"zone": "s.new"}
    ).execute()
    place.write(7)
    place.compact()
    place.write(8)
    place.compact()
    assert place.decide() is Verdict.PUBLISHED
    assert place.stream() == [1, 2, 3, 4, 5, 7, 8, 9]
    place.check(2, 3, 4, 5, 7, 8, 101)
    # A bad row that was corrected beside good ones.
    place.write(10, 300)
    place.delta().update("zone = 300", {"zone": "11"})
    place.delta().delete("zone = 101")
    place.compact()
    assert place.decide() is Verdict.PUBLISHED
    assert place.stream() == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    place.check(2, 3, 4, 5, 7, 8, 10, 11)
    # A stream that does not skip them must notice that rows were changed.
    rows = place.spark.readStream.format("delta").option("startingVersion", 2).load(place.published)
    query = rows.writeStream.format("noop").option("checkpointLocation", str(place.folder / "plain"))
    with pytest.raises(Exception, match=r"DELTA_SOURCE_(TABLE_IGNORE_CHANGES|IGNORE_DELETE)"):
        query.trigger(availableNow=True).start().awaitTermination()


def test_a_change_feed_of_a_published_table_shows_the_net_change(place):
    place.spark.conf.set("spark.databricks.delta.properties.defaults.enableChangeDataFeed", "true")
    try:
        place.write(1, 2)
        assert place.decide() is Verdict.PUBLISHED
        place.write(3)
        place.delta().delete("zone = 1")
        place.write(300)
        place.delta().update("zone = 300", {"zone": "4"})
        assert place.decide() is Verdict.PUBLISHED
        feed = place.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
        rows = [(row.zone, row._change_type) for row in feed.load(place.published).collect()]
    finally:
        place.spark.conf.unset("spark.databricks.delta.properties.defaults.enableChangeDataFeed")
    # Files are rewritten whole: a row may be deleted and inserted again.
    net = {zone: sum(1 if kind == "insert" else -1 for one, kind in rows if one == zone) for zone in (1, 2, 3, 4, 300)}
    assert net == {1: -1, 2: 0, 3: 1, 4: 1, 300: 0}


@pytest.mark.long
@pytest.mark.parametrize("mapped", [False, True])
def test_a_restore_within_a_range_leaves_the_tables_rows(place, mapped):
    mapping = ", 'delta.columnMapping.mode' = 'name'" if mapped else ""
    place.spark.sql(
        f"CREATE TABLE delta.`{place.table}` ({COLUMNS}, note string) USING delta"
        f" TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(mapped).lower()}'{mapping})"
    )
    place.write(1, 2)
    assert place.decide() is Verdict.PUBLISHED
    place.write(3)
    place.delta().restoreToVersion(1)
    place.write(4)
    place.delta().delete("zone = 1")
    if mapped:
        place.spark.sql(f"ALTER TABLE delta.`{place.table}` RENAME COLUMN note TO remark")
    assert place.decide() is Verdict.PUBLISHED
    assert place.read() == [2, 4]
    place.compact()
    place.write(5)
    place.delta().restoreToVersion(1)
    if mapped:
        place.spark.sql(f"ALTER TABLE delta.`{place.table}` DROP COLUMN {'note'}")
    place.write(6)
    assert place.decide() is Verdict.PUBLISHED
    assert place.read() == [1, 2, 6]
    found, own = (place.spark.read.format("delta").load(path) for path in (place.published, place.table))
    assert found.schema == own.schema
    assert found.exceptAll(own).count() == own.exceptAll(found).count() == 0


@pytest.mark.long
@pytest.mark.ci
def test_v2_checkpoints_are_read_and_the_logs_own_checkpoints_are_sparks(place, monkeypatch):
    monkeypatch.setattr(published_log, "CHECKPOINT_EVERY", 3)
    place.spark.sql(
        f"CREATE TABLE delta.`{place.table}` ({COLUMNS}) USING delta"
        " TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2')"
    )
    for zone in (1, 2, 3):
        place.write(zone)
    log = place.folder / "root/tables/windows/_delta_log"
    (checkpoint,) = log.glob(f"{2:020d}.checkpoint.*")
    assert checkpoint.name.count(".") == 3
    for path in log.glob(f"{0:020d}.json"):
        path.unlink()
    assert place.decide() is Verdict.PUBLISHED
    assert place.read() == [1, 2, 3]
    for zone in (4, 5, 6, 7):
        place.write(zone)
        assert place.decide() is Verdict.PUBLISHED
    own = place.folder / "root/published/windows/_delta_log"
    assert (own / f"{6:020d}.checkpoint.parquet").exists()
    # Only behind its checkpoint is the log complete now.
    for path in own.glob("*.json"):
        if int(path.stem) < 6:
            path.unlink()
    assert place.stream() == place.read() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.long
@pytest.mark.ci
def test_a_root_with_blanks_and_signs(spark, tmp_path):
    place = Place(spark, tmp_path / "a #1 100% 'x'")
    place.spark.sql(
        f"CREATE TABLE delta.`{place.table}` ({COLUMNS}) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    place.write(*range(1, 50))
    place.delta().delete("zone < 48")
    assert place.decide() is Verdict.PUBLISHED
    place.write(50)
    assert place.decide() is Verdict.PUBLISHED
    assert place.stream() == place.read() == [48, 49, 50]
    found = deltalake.DeltaTable(place.published)
    assert sorted(row["zone"] for row in pa.table(found.scan()).to_pylist()) == [48, 49, 50]
