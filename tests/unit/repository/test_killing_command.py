"""The command that kills in tests of rescales: what it finds to kill, and that it says so only then."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from streamwarden.model.record import utc_now
from streamwarden.model.status import Launch
from streamwarden.runtime.processes import process_of
from streamwarden.store.documents import JobDocuments
from tests.integration import killing_command
from tests.integration.killing_command import THE_DRIVER, THE_STANDBY
from tests.integration.test_rescale_kills import BACK, moments
from tests.unit.savepoints.test_catalog import opened
from tests.unit.supervision.test_supervision import JOB, desired

pytestmark = pytest.mark.unit


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A long-lived standby process in its own session."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", "--standby"], start_new_session=True
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]) -> None:
    """A driver that has not said anything yet."""
    workspace = opened(tmp_path)
    monkeypatch.setattr(killing_command, "open_workspace", lambda: workspace)
    documents, wanted = JobDocuments(workspace.storage, JOB), desired()
    documents.desired.write(wanted)
    documents.launch("i1").write(
        Launch(
            incarnation="i1",
            at=utc_now(),
            by="test",
            reason="for the test",
            digest=wanted.digest,
            spec=wanted.spec,
            process=process_of(sleeper.pid),
        )
    )


@pytest.mark.usefixtures("launched")
def test_a_driver_without_a_heartbeat_is_killed_and_a_dead_one_is_no_kill(
    sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    killing_command._kill(JOB, THE_DRIVER)
    assert sleeper.wait(timeout=10) == -signal.SIGKILL
    assert capsys.readouterr().out.splitlines() == ["", "killed"]
    killing_command._kill(JOB, THE_DRIVER)
    assert capsys.readouterr().out == ""


def test_the_standby_is_a_child_of_the_command(
    sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    killing_command._kill(JOB, THE_STANDBY)
    assert sleeper.wait(timeout=10) == -signal.SIGKILL
    assert capsys.readouterr().out.splitlines() == ["", "killed"]
    killing_command._kill(JOB, THE_STANDBY)
    assert capsys.readouterr().out == ""


def test_as_many_kills_as_the_docs_say() -> None:
    fast, plain = moments(Random(5), ["fast"]), moments(Random(5), ["plain", BACK])
    assert (len(fast), len(plain)) == (53, 44)
    assert Counter(whom for _, _, whom, after in fast if not after)[THE_STANDBY] == 9
