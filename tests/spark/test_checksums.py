"""Our commits' checksum files are what Delta itself would write: so Delta goes on from them, and reads no log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession

from streamwarden.formats.delta_checksum import write_checksum
from streamwarden.formats.delta_fence import fence
from streamwarden.formats.delta_log import application_id
from streamwarden.formats.delta_writer import DeltaWriter
from streamwarden.model.record import utc_now
from streamwarden.model.status import CheckpointRef
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.spark

VERIFY = "spark.databricks.delta.incremental.commit.verify"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "config" / "profiles").mkdir(parents=True)
    (tmp_path / "config" / "profiles" / "test.yaml").write_text(yaml.safe_dump({"name": "test", "root": "root"}))
    return open_workspace("test", config=tmp_path / "config")


def write(spark: SparkSession, workspace: Workspace, generation: int, batch: int) -> None:
    rows = spark.range(10).write.format("delta").mode("append")
    ids = {"txnAppId": application_id("job", generation), "txnVersion": str(batch)}
    rows.options(**ids).save(workspace.table("t"))


def checksum(workspace: Workspace, version: int) -> dict[str, Any]:
    path = Path(workspace.table("t")) / "_delta_log" / f"{version:020d}.crc"
    found: dict[str, Any] = json.loads(path.read_text())
    found.pop("txnId", None)
    found["setTransactions"] = sorted((one["appId"], one["version"]) for one in found["setTransactions"])
    return found


def shut_out(workspace: Workspace, generation: int, highest: int) -> int | None:
    reference = CheckpointRef(
        job="job", generation=generation, path="p", since=utc_now(), reason="for the test", highest=highest
    )
    return fence(workspace, "t", reference)


@pytest.mark.long
def test_delta_goes_on_from_it_and_would_have_written_the_same(spark: SparkSession, workspace: Workspace) -> None:
    write(spark, workspace, 1, 0)
    write(spark, workspace, 1, 1)
    before = checksum(workspace, 1)
    assert shut_out(workspace, 2, 2) == 2
    ours = checksum(workspace, 2)
    assert {key for key in ours if ours[key] != before[key]} == {"setTransactions"}
    spark.conf.set(VERIFY, "true")
    try:
        # Before this commit and after it Delta compares the checksum with the whole log.
        write(spark, workspace, 2, 0)
    finally:
        spark.conf.unset(VERIFY)
    after = checksum(workspace, 3)
    assert after["setTransactions"] == [(application_id("job", 1), 2**63 - 1), (application_id("job", 2), 0)]
    assert after["numFiles"] == ours["numFiles"] + spark.range(10).rdd.getNumPartitions()
    # What is shut out is passed over, and a generation that is taken up again goes on where it was.
    write(spark, workspace, 1, 2)
    assert spark.read.format("delta").load(workspace.table("t")).count() == 30
    assert shut_out(workspace, 1, 2) == 4
    write(spark, workspace, 1, 2)
    assert spark.read.format("delta").load(workspace.table("t")).count() == 40


def test_delta_goes_on_from_what_delta_rs_wrote(spark: SparkSession, workspace: Workspace) -> None:
    write(spark, workspace, 1, 0)
    versions: list[int] = []

    def committed(version: int) -> None:
        versions.append(version)
        write_checksum(workspace, "t", version)

    address, options = workspace.delta_rs("t")
    writer = DeltaWriter(address, options, keys=["id"], application=application_id("job", 1), committed=committed)
    rows = pa.table({"id": pa.array([3, 70], pa.int64())})
    assert writer.append(rows, 1, author="me", guard=lambda: None) == 1
    # It rewrites files: some are removed and others added.
    assert writer.upsert(rows, 2, deleted="", passed=None, author="me", guard=lambda: None) == 2
    assert versions == [1, 2]
    spark.conf.set(VERIFY, "true")
    try:
        write(spark, workspace, 1, 3)
    finally:
        spark.conf.unset(VERIFY)
    after = checksum(workspace, 3)
    assert after["setTransactions"] == [(application_id("job", 1), 3)]
    assert spark.read.format("delta").load(workspace.table("t")).count() == 21


def test_a_false_one_would_be_found(spark: SparkSession, workspace: Workspace) -> None:
    """Of the test itself: what it has Delta compare, is compared."""
    write(spark, workspace, 1, 0)
    assert shut_out(workspace, 2, 2) == 1
    path = Path(workspace.table("t")) / "_delta_log" / f"{1:020d}.crc"
    found = json.loads(path.read_text())
    found["setTransactions"] = []
    path.write_text(json.dumps(found))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    spark.conf.set(VERIFY, "true")
    try:
        with pytest.raises(Exception, match=r"(?i)checksum|setTransaction"):
            write(spark, workspace, 2, 0)
    finally:
        spark.conf.unset(VERIFY)


def test_without_one_before_there_is_none(spark: SparkSession, workspace: Workspace) -> None:
    write(spark, workspace, 1, 0)
    log = Path(workspace.table("t")) / "_delta_log"
    for path in log.glob("*.crc"):
        path.unlink()
    assert shut_out(workspace, 2, 2) == 1
    assert not list(log.glob("*.crc"))
