"""A place with one small table, for tests of the gate."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from streamwarden.quality.gate import Gate
from streamwarden.quality.gate_state import gate_state
from streamwarden.store.workspace import open_workspace

START = datetime(2023, 3, 6, 8, tzinfo=UTC)


def rule(kind, name, severity="critical", meta=(), **arguments):
    prefixed = kind if kind.startswith("unexpected") else f"expect_{kind}"
    return {"type": prefixed, "kwargs": arguments, "severity": severity, "meta": {"id": name, **dict(meta)}}


ZONE = rule("column_values_to_be_between", "zone", column="zone", min_value=1, max_value=265)
KEY = rule("compound_columns_to_be_unique", "key", column_list=["start", "zone"])


def rows(*zones, start=START, hour=0, kind=None):
    moment = start + timedelta(hours=hour)
    return pa.table(
        {
            "start": pa.array([moment] * len(zones), kind or pa.timestamp("us", "UTC")),
            "zone": pa.array(zones, pa.int32()),
            "source_file": [f"trips-{hour}.parquet"] * len(zones),
        }
    )


class Place:
    def __init__(self, folder):
        self.suites = folder / "expectations"
        self.suites.mkdir()
        self.workspace = open_workspace("local", root=folder / "root")
        self.table = self.workspace.table("windows")
        self.gate = Gate(self.workspace, self.suites)
        self.suite(ZONE, KEY)

    def suite(self, *rules, name="windows", keys=("start", "zone")):
        document = {"name": name, "meta": {"keys": list(keys)}, "expectations": rules}
        (self.suites / f"{name}.json").write_text(json.dumps(document))

    def write(self, *zones, table="windows", partition_by=None, **options):
        data = options.pop("data", None)
        found = rows(*zones, **options) if data is None else data
        write_deltalake(self.workspace.table(table), found, mode="append", partition_by=partition_by)

    def decide(self, table="windows", **options):
        return self.gate.decide(table, **options)

    @property
    def state(self):
        return gate_state(self.workspace, "windows")

    @property
    def failures(self):
        return {one.expectation: one for one in self.state.record.hold.failures} if self.state.record.hold else {}

    @property
    def published(self):
        found = DeltaTable(str(self.workspace.root / "published" / "windows"))
        return sorted(row["zone"] for row in pa.table(found.scan()).to_pylist())
