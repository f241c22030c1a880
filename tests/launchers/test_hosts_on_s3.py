"""Two machines that share a bucket alone: one of them is lost, and the other goes on from what the bucket has."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streamwarden.model.gate import Verdict
from streamwarden.model.savepoint import Origin
from streamwarden.operations.restore import restore
from streamwarden.quality.gate import Gate
from streamwarden.runtime.launchers.hosts import start_document
from streamwarden.runtime.processes import is_alive
from streamwarden.savepoints import catalog
from streamwarden.savepoints.take import take
from streamwarden.savepoints.verify import verify
from streamwarden.supervision.observe import Phase
from tests.integration.conftest import BY
from tests.launchers.hosts import HostsOnS3
from tests.launchers.place import JOB, until

# A PID namespace stands for another machine. No process in it is seen or killed from outside, and all of them die with
# the first one.
MACHINE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

pytestmark = [
    *(pytest.mark.integration, pytest.mark.launchers, pytest.mark.long, pytest.mark.timeout(600), pytest.mark.s3),
    pytest.mark.parametrize("kind", ["host-s3"]),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="PID namespaces need root and unshare"
    ),
]


def host_of(place: HostsOnS3, incarnation: str) -> str:
    start = start_document(place.workspace, incarnation).read()
    assert start is not None and start.host is not None
    return start.host


def test_a_machine_is_lost(place: HostsOnS3, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    for name in place.NAMES:
        place.end_host(name)
        place.start_host(name, *MACHINE)
    driver = place.deploy()
    seen = place.seen()
    assert seen.heartbeat is not None and is_alive(seen.heartbeat.process) is None, "it can be seen from here"
    made = take(place.workspace, JOB, origin=Origin.MANUAL, by=BY)
    found = catalog.find(place.workspace, JOB, made.id)
    assert verify(place.workspace, [found], by=BY)[made.id].verdict == "verified"

    # In a batch, whose rows may be in the table already.
    place.in_batch()
    lost = host_of(place, driver)
    place.end_host(lost)
    took = until(lambda: place.seen().phase is Phase.SILENT, "its lease to expire", timeout=60)
    place.hold.unlink()
    took += until(lambda: place.restarted(), "the restart", timeout=60)
    took += until(lambda: host_of_newest(place) not in (None, lost), "the other host", timeout=60)
    record_property("taken_over_s", round(took, 1))
    # 10 s of lease, 15 until the lost host counts as gone, and the debounce between.
    assert took < 60
    place.check()
    place.counts.check_totals()

    # The savepoint was made on the machine that is gone, and is restored on the other one.
    restore(place.workspace, JOB, savepoint=made.id, by=BY)
    place.counts.add([77])
    place.check()
    assert host_of(place, place.incarnation()) != lost

    # What both machines have written is judged and published by a process that has nothing but the bucket.
    decision = gate_of(place, tmp_path).decide(JOB)
    assert decision is not None and decision.verdict is Verdict.PUBLISHED
    address, options = place.workspace.delta_rs(JOB, published=True)
    found = pa.table(DeltaTable(address, storage_options=options).scan()).to_pylist()
    assert {row["key"]: row["rows"] for row in found} == place.counts.expected


def gate_of(place: HostsOnS3, folder: Path) -> Gate:
    positive = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "rows", "min_value": 1},
        "severity": "critical",
        "meta": {"id": "positive"},
    }
    suite = {"name": JOB, "meta": {"keys": ["key"]}, "expectations": [positive]}
    (folder / "suites").mkdir()
    (folder / "suites" / f"{JOB}.json").write_text(json.dumps(suite))
    return Gate(place.workspace, folder / "suites")


def host_of_newest(place: HostsOnS3) -> str | None:
    newest = place.documents(JOB).incarnations()[-1]
    start = start_document(place.workspace, newest).read()
    return start.host if start is not None else None
