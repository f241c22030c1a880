"""Each benchmark, at its smallest: that it still runs to its goals. Its figures are judged by who runs it, not here."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

GOAL = re.compile(r"\S+ -?[0-9.]+ [0-9.]+ (ok|short)")


@pytest.mark.parametrize(
    "words",
    [
        "benchmarks.start --runs 1",
        "benchmarks.warm_start --runs 1 --keys 10000",
        "benchmarks.overhead --rows 300000 --batches 45 --runs 1",
        "benchmarks.settings --batches 5 --runs 1",
        "benchmarks.savepoint --keys 1000 --runs 1",
        "benchmarks.rescale --keys 1000 --runs 1",
        "benchmarks.state_python --scale 0.01 --runs 1",
        "benchmarks.commits --scale 0.02 --runs 1",
        "benchmarks.serving --runs 1 --seconds 1 --keys 1000 --only sqlite",
        "benchmarks.peers.run --share 0.05 --only ours windows",
        "benchmarks.pages --jobs 3 --weeks 1 2 --requests 2",
        "benchmarks.state_backends --keys 1000 --batches 3 --memory 1g",
        "benchmarks.quality --commits 2 --rows 1000 --times 6",
        "benchmarks.fleet --jobs 3 4 --seconds 5",
    ],
)
def test_a_benchmark_runs_to_its_goals(words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    # 1 is what a goal that is missed leaves, and what an exception leaves.
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert GOAL.fullmatch(done.stdout.splitlines()[-1]), done.stdout
