from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from streamwarden.runtime.processes import current_process, end_of, is_alive, process_of

pytestmark = pytest.mark.unit


def test_a_clock_that_is_set_makes_nobody_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel then tells another time of boot, and psutil another start time of every process."""
    me = current_process()
    real: Callable[[], float] = psutil._psplatform.boot_time
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: real() + 3600)
    assert abs(psutil.boot_time() - real() - 3600) < 1
    assert is_alive(me) is True and current_process() == me


def test_another_process_of_the_same_number_is_another() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        there = process_of(process.pid)
        assert is_alive(there) is True
        assert is_alive(there.model_copy(update={"started": there.started - 1})) is False
        process.kill()
    assert is_alive(there) is False


def test_the_end_of_a_process_can_be_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        there = process_of(process.pid)
        handle = end_of(there)
        assert handle is not None
        assert end_of(there.model_copy(update={"started": there.started - 1})) is None
        assert end_of(there.model_copy(update={"host": "another"})) is None
        assert select.select([handle], [], [], 0)[0] == []
        process.kill()
        # Before anybody has reaped it, as a driver's supervisor is not its parent.
        assert select.select([handle], [], [], 10)[0] == [handle]
        os.close(handle)
        assert end_of(there) is None


def test_a_process_of_another_pid_namespace_is_not_taken_for_dead() -> None:
    """Two containers with the host's network have one host name and one boot id."""
    script = (
        "import sys; from streamwarden.model.process_ref import ProcessRef;"
        " from streamwarden.runtime.processes import is_alive, kill;"
        " there = ProcessRef.model_validate_json(sys.argv[1]); print(is_alive(there), kill(there))"
    )
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a PID namespace")
    command = [*inside, sys.executable, "-c", script, current_process().model_dump_json()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False"]
    # An older record does not name its own.
    assert is_alive(current_process().model_copy(update={"namespace": ""})) is True
