"""A JVM that has started its driver, as in Spark's cluster deploy mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

_DRIVER = """
import json, sys, threading
from pathlib import Path
from types import SimpleNamespace
from streamwarden.spark.cluster_mode import parent_jvm
parent_jvm()
from streamwarden.driver import jvm as ends
from streamwarden.driver.jvm import end_jvm, is_orphaned, jvm_end, jvm_of
from streamwarden.driver.memory import ProcessMemory
from streamwarden.runtime.processes import current_process

class Broken:
    sparkContext = SimpleNamespace(_gateway=None)
    def stop(self):
        raise RuntimeError("the JVM does not answer")

class Hanging(Broken):
    def stop(self):
        threading.Event().wait()

ends._STOP_S = 0.1
for line in sys.stdin:
    if line == "look\\n":
        jvm = jvm_of(current_process())
        said = {"jvm": jvm and jvm.pid, "end": jvm_end(None, Path("nowhere"), gone=False), "memory": ProcessMemory()()}
        said["orphaned"] = is_orphaned()
    else:
        session = Hanging() if line == "stop hanging\\n" else Broken()
        said = {"end": jvm_end(None, Path("nowhere"), gone=end_jvm(session) is None)}
    print(json.dumps(said), flush=True)
"""


class Cluster:
    """A process by the name of java that starts a driver, and hands its input and output to it."""

    def __init__(self, folder: Path) -> None:
        (folder / "driver.py").write_text(_DRIVER)
        java = folder / "java"
        java.write_text('#!/bin/sh\n"$1" "$2" <&3\n')
        java.chmod(0o755)
        read, self._write = os.pipe()
        environment = {**os.environ, "PYSPARK_GATEWAY_PORT": "1", "LOG_DIRS": f"{folder},/other"}
        # Input by another descriptor: the shell's own ends with it.
        self.jvm = subprocess.Popen(
            [str(java), sys.executable, str(folder / "driver.py")],
            preexec_fn=lambda: os.dup2(read, 3),
            close_fds=False,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        os.close(read)

    def __call__(self, command: str) -> dict[str, Any]:
        os.write(self._write, f"{command}\n".encode())
        assert self.jvm.stdout is not None
        said: dict[str, Any] = json.loads(self.jvm.stdout.readline())
        return said

    def close(self) -> None:
        os.close(self._write)
        assert self.jvm.stdout is not None
        self.jvm.stdout.close()
        self.jvm.wait(10)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_the_jvm_is_the_parent_and_its_end_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    seen = cluster("look")
    assert seen["jvm"] == cluster.jvm.pid and seen["end"] is None and seen["memory"] > 0
    assert not seen["orphaned"]
    (tmp_path / "stdout").write_text("x\nTerminating due to java.lang.OutOfMemoryError: Java heap space\n")
    cluster.jvm.kill()
    cluster.jvm.wait(10)
    seen = cluster("look")
    assert seen["jvm"] is None and seen["orphaned"]
    assert seen["end"][0] == "OUT_OF_MEMORY" and "Java heap space" in seen["end"][1]


@pytest.mark.parametrize("command", ["stop", "stop hanging"])
def test_a_jvm_that_does_not_stop_is_killed(cluster: Cluster, command: str) -> None:
    assert cluster("look")["end"] is None
    assert cluster(command)["end"][0] == "JVM_DIED"
    assert cluster.jvm.wait(10) == -9
