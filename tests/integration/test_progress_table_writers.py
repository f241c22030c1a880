"""Writers of the table of batches as processes of their own: many at once, killed anywhere, started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from streamwarden.formats.progress_table import ProgressTable
from streamwarden.store.documents import JobDocuments
from streamwarden.store.workspace import Workspace
from tests.batches import make_place
from tests.http_receiver import wait_until
from tests.integration.conftest import REPOSITORY

pytestmark = pytest.mark.integration

# What a driver does, without its Spark: reports each batch, then hands it over.
DRIVER = """
import sys, time
from pathlib import Path
from streamwarden.model.progress import Progress
from streamwarden.model.record import utc_now
from streamwarden.model.status import DriverState, Heartbeat, Launch
from streamwarden.store.documents import JobDocuments
from streamwarden.runtime.processes import current_process
from streamwarden.model.profile import ProgressTableSpec
from streamwarden.store.workspace import open_workspace
from streamwarden.driver.recorder import BatchRecorder
from tests.batches import made_batch

config, job, incarnation, first, count = sys.argv[1:6]
workspace = open_workspace("test", config=Path(config))
documents = JobDocuments(workspace.storage, job)
now = utc_now()
documents.launch(incarnation).write(Launch(incarnation=incarnation, at=now, by="test", reason="", digest=""))
documents.heartbeat(incarnation).write(
    Heartbeat(incarnation=incarnation, at=now, started_at=now, state=DriverState.RUNNING, process=current_process(),
              generation=1)
)
recorder = BatchRecorder(workspace, job, incarnation, 1, workspace.profile.progress_table)
recorder.start()
recent = []
for batch in range(int(first), int(first) + int(count)):
    recent.append(made_batch(batch, at=utc_now()))
    documents.progress(incarnation).write(
        Progress(incarnation=incarnation, at=utc_now(), last=recent[-1], recent=recent[-50:])
    )
    recorder.add(recent[-1])
    time.sleep(0.004)
while "lives" in sys.argv:
    time.sleep(1)
sys.exit(0 if recorder.close(60) else 1)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_place(tmp_path, progress_table={"every": "100ms", "batches": 5})


def start(
    workspace: Workspace, job: str, incarnation: str, first: int, count: int, *, lives: bool = False
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", DRIVER, str(workspace.config), job, incarnation, str(first), str(count)]
    command += ["lives"] if lives else []
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})


@pytest.mark.long
def test_many_drivers_at_once_lose_nothing_and_add_nothing_twice(workspace: Workspace) -> None:
    # One of each job, and a second one that says that it is the same: as one that lost its lease and goes on.
    running = [start(workspace, job, "i1", 0, 60) for job in ("one", "two", "three", "one")]
    assert [process.wait(120) for process in running] == [0, 0, 0, 0]
    for job in ("one", "two", "three"):
        # Sorted: rows are by time, and two that are one job report a batch at two times, whichever of them wins.
        assert sorted(row["batch"] for row in ProgressTable(workspace).read(job)) == list(range(60))


def test_drivers_killed_anywhere_leave_each_reported_batch_once(workspace: Workspace) -> None:
    chance = random.Random(int(os.environ.get("STREAMWARDEN_TEST_SEED", "7")))
    documents = JobDocuments(workspace.storage, "lamp")
    killed = 0
    for number in range(8):
        incarnation = f"i{number}"
        last = number == 7
        process = start(workspace, "lamp", incarnation, number * 1000, 30 if last else 45, lives=not last)
        if not last:
            # A progress document holds 50: no more may wait than that, however late the kill is.
            wait_until(lambda one=incarnation: documents.progress(one).read() is not None)
            time.sleep(chance.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
        code = process.wait(60)
        killed += code == -signal.SIGKILL
        assert code == (0 if last else -signal.SIGKILL)
    assert killed == 7
    table = Counter((row["incarnation"], row["batch"]) for row in ProgressTable(workspace).read("lamp"))
    said: Counter[tuple[str, int]] = Counter()
    for number in range(8):
        progress = documents.progress(f"i{number}").read()
        assert progress is not None and progress.last is not None
        # All that it ever reported, of which the document keeps the end.
        said.update((progress.incarnation, batch) for batch in range(number * 1000, progress.last.batch + 1))
    assert table == said
