"""Savepoints of a job under load whose old state Spark removes as fast as it may."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streamwarden.errors import StreamwardenError
from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Observation
from tests.integration.conftest import BY, Place

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

KEYS = 3_000
ROWS = 2_000


class Load(threading.Thread):
    """Rows of random keys, as fast as batches take them: five batches' worth waits at most."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.done = threading.Event()
        self.written: Counter[int] = Counter()
        self.write()

    def write(self) -> None:
        keys = np.random.default_rng(sum(self.written.values())).integers(0, KEYS, ROWS)
        uri, options = self.place.workspace.delta_rs("rows")
        write_deltalake(uri, pa.table({"key": keys}), mode="append", storage_options=options)
        self.written.update(keys.tolist())

    def run(self) -> None:
        while not self.done.wait(0.3):
            if sum(self.written.values()) - _read(self.place) < 5 * ROWS:
                self.write()


def take_in_a_row(place: Place, number: int) -> Counter[str]:
    """Take so many savepoints under load; return how they ended. What is whole was looked through."""
    place.job(
        "counts",
        module="tests.integration.jobs.counts",
        source={"kind": "delta", "table": "rows", "max_files_per_batch": 1},
        sinks=[{"table": "counts", "mode": "upsert", "keys": ["key"]}],
        trigger={"interval": "100ms"},
        state={"partitions": 3, "min_batches_to_retain": 2},
        spark={
            "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
        },
    )
    load = Load(place)
    deploy_job(place.workspace, "counts", by=BY)
    place.wait("counts", lambda seen: bool(seen.heartbeat and seen.heartbeat.batch is not None), "a batch")
    load.start()
    ended: Counter[str] = Counter()
    batches = set()
    for count in range(number):
        try:
            made = take(place.workspace, "counts", origin=Origin.MANUAL, by=BY)
            ended["taken"] += 1
            batches.add(made.batch)
        except StreamwardenError as error:
            ended[error.code] += 1
        if count % 2:
            # On some machines a batch takes seconds: batches have to go on, and not only takes.
            newest = max(batches, default=-1)
            place.wait("counts", lambda seen, last=newest: _batch(seen) > last, "the next batch")  # type: ignore[misc]
        else:
            time.sleep(0.2)
    load.done.set()
    load.join()
    assert len(batches) >= number / 3
    known = catalog.savepoints(place.workspace, "counts")
    assert len(known) == ended["taken"]
    assert set(place.workspace.files.folders("savepoints/counts")) == {one.manifest.id for one in known}
    found = verify(place.workspace, known, by=BY)
    assert {name: one.problems for name, one in found.items() if one.problems} == {}
    rows = [one.manifest.state_rows for one in known]
    assert all(count is None or 0 < count <= KEYS for count in rows) and sum(count is not None for count in rows) > 0
    total = sum(load.written.values())
    place.wait("counts", lambda seen: _read(place) >= total, "all rows to be read", timeout=300)
    assert driver_control.stop(place.workspace, "counts", by=BY).exit is not None
    assert {row["key"]: row["rows"] for row in place.rows("counts")} == dict(load.written)
    sys.stdout.write(f"{number} takes: {dict(ended)}\n")
    return ended


def _batch(seen: Observation) -> int:
    return seen.heartbeat.batch if seen.heartbeat and seen.heartbeat.batch is not None else -1


def _read(place: Place) -> int:
    totals = place.documents("counts").current_totals()
    return totals.rows_in if totals else 0


@pytest.mark.long
def test_hot_savepoints_in_a_row(place: Place) -> None:
    check(take_in_a_row(place, 12), 12)


@pytest.mark.long
def test_fifty_hot_savepoints_in_a_row(place: Place) -> None:
    number = int(os.environ.get("STREAMWARDEN_TEST_TAKES", "50"))
    check(take_in_a_row(place, number), number)


def check(ended: Counter[str], number: int) -> None:
    assert set(ended) <= {"taken", "SAVEPOINT_OUTRUN"}
    assert ended["taken"] >= 0.9 * number
