"""The table of batches on a real S3 server: several processes write at once, which is what conditional PUT is for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.model.record import utc_now
from streamwarden.store.workspace import Workspace
from tests.batches import made_batch, make_place
from tests.integration.conftest import REPOSITORY
from tests.s3.conftest import Place
from tests.s3.server import S3Server

pytestmark = pytest.mark.s3

WRITER = """
import sys
from pathlib import Path
from streamwarden.formats.progress_table import ProgressTable
from streamwarden.store.workspace import open_workspace
from tests.batches import made_batch
table = ProgressTable(open_workspace("test", config=Path(sys.argv[1])))
added = sum(table.append("lamp", sys.argv[2], 1, [made_batch(2 * n), made_batch(2 * n + 1)]) for n in range(10))
print(added)
"""


@pytest.fixture
def workspace(tmp_path: Path, s3: Place, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(s3.location.endpoint))
    return make_place(tmp_path, s3={"bucket": s3.location.bucket, "prefix": s3.location.prefix})


def test_writers_at_once_lose_nothing_and_add_nothing_twice(workspace: Workspace) -> None:
    # Two of them for the same run of a driver.
    names = ("i1", "i2", "i3", "i1")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(workspace.config), name],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    added = [int(process.communicate(timeout=200)[0]) for process in running]
    assert (added[0] + added[3], added[1], added[2]) == (20, 20, 20)
    table = ProgressTable(workspace)
    found = sorted((row["incarnation"], row["batch"]) for row in table.read("lamp"))
    assert found == [(name, batch) for name in ("i1", "i2", "i3") for batch in range(20)]
    assert table.upkeep(timedelta(days=36_500))["files_joined"] >= 30
    assert len(table.read("lamp")) == 60


def test_a_server_that_is_away_is_an_error_that_passes(workspace: Workspace, server: S3Server) -> None:
    table = ProgressTable(workspace)
    assert table.append("lamp", "i1", 1, [made_batch(0, at=utc_now())]) == 1
    server.stop()
    began = time.monotonic()
    with pytest.raises(StreamwardenError) as caught:
        table.append("lamp", "i1", 1, [made_batch(1, at=utc_now())])
    assert caught.value.code == "PROGRESS_TABLE_FAILED" and time.monotonic() - began < 60
    server.start()
    assert table.append("lamp", "i1", 1, [made_batch(0), made_batch(1, at=utc_now())]) == 1
    assert [row["batch"] for row in table.read("lamp")] == [0, 1]
