"""Scratch folders: those of running processes stay, those of dead ones go."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamwarden.runtime import work_dirs
from streamwarden.store.workspace import Workspace, open_workspace

pytestmark = pytest.mark.unit

JOB = "zone_windows"

CLAIM = """
import sys
from streamwarden.runtime import work_dirs
from streamwarden.store.workspace import open_workspace
folder = work_dirs.claim(open_workspace("local", root=sys.argv[1]), sys.argv[2], sys.argv[3])
(folder / "state.sst").write_text("state")
print("claimed", flush=True)
input()
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace("local", root=tmp_path)


@contextmanager
def driver(workspace: Workspace, incarnation: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has claimed a folder; it is killed in the end."""
    command = [sys.executable, "-c", CLAIM, str(workspace.root), JOB, incarnation]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "claimed\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_a_killed_process_left_goes_and_what_a_running_one_has_stays(workspace: Workspace) -> None:
    with driver(workspace, "alive"):
        with driver(workspace, "killed"):
            assert work_dirs.sweep(workspace, JOB) == []
        assert work_dirs.sweep(workspace, "another") == []
        assert work_dirs.sweep(workspace, JOB) == ["killed"]
        assert [folder.name for folder in workspace.scratch.glob("*/*")] == ["alive"]
        assert (workspace.scratch_dir(JOB, "alive") / "state.sst").exists()
    assert work_dirs.sweep(workspace, JOB) == ["alive"]
    assert work_dirs.sweep(workspace, JOB) == []


def test_a_process_does_not_sweep_its_own(workspace: Workspace) -> None:
    folder = work_dirs.claim(workspace, JOB, "own")
    assert work_dirs.sweep(workspace, JOB) == []
    work_dirs.remove(folder)
    assert not folder.exists()


def test_a_claim_holds_whatever_sweeps_at_that_moment(workspace: Workspace) -> None:
    ended = threading.Event()

    def sweeping() -> None:
        while not ended.is_set():
            work_dirs.sweep(workspace, JOB)

    sweeper = threading.Thread(target=sweeping)
    sweeper.start()
    try:
        claimed = [work_dirs.claim(workspace, JOB, f"{number:03}") for number in range(300)]
    finally:
        ended.set()
        sweeper.join()
    assert all(folder.is_dir() for folder in claimed)
    assert work_dirs.sweep(workspace, JOB) == []
