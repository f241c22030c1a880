"""The memory of a driver's processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from streamwarden.driver.memory import ProcessMemory

pytestmark = pytest.mark.unit

_CHILD = """
import subprocess, sys
if len(sys.argv) > 1:
    held = bytearray(b"x" * 100_000_000)
    print("ready", flush=True)
    sys.stdin.read()
else:
    subprocess.run([sys.executable, __file__, "grandchild"])
"""


def test_children_and_grandchildren_count_until_they_end(tmp_path: Path) -> None:
    (script := tmp_path / "child.py").write_text(_CHILD)
    own = psutil.Process().memory_info().rss
    # The grandchild has its input and output.
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        with_it = ProcessMemory()()
        assert with_it is not None and with_it > own + 100_000_000
        kept, fresh = ProcessMemory(every=3600), ProcessMemory(every=0)
        before = kept()
        child.communicate()
    assert kept() == before
    after = fresh()
    assert after is not None and after < with_it - 90_000_000
