"""A real replay process, killed and stopped."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from nyc_taxi.trips.columns import TRIP_KEY
from nyc_taxi.trips.generator import GeneratorOptions, generate

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from pathlib import Path
from nyc_taxi.trips.generator import GeneratorOptions, generate
from nyc_taxi.trips.replay import Replay, ReplayOptions, stop_on_signals

speed = sys.argv[2] if sys.argv[2] == "max" else float(sys.argv[2])
with stop_on_signals() as stop:
    replay = Replay(generate(GeneratorOptions(trips=4000)), Path(sys.argv[1]), ReplayOptions(speed=speed))
    replay.plan
    print("ready", flush=True)
    progress = replay.run(stop=stop)
print(progress.files, progress.done, flush=True)
"""


def start(landing: Path, speed: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(landing), speed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def trips(files) -> Counter:
    keys = Counter()
    for path in files:
        table = pq.ParquetFile(path).read(columns=list(TRIP_KEY))
        keys.update(tuple(row.values()) for row in table.to_pylist())
    return keys


def visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


@pytest.mark.parametrize("consumed", [pytest.param(False, marks=pytest.mark.long), True], ids=["kept", "consumed"])
def test_killed_at_arbitrary_moments_every_trip_lands_exactly_once(tmp_path, consumed):
    landing, archive = tmp_path / "landing", tmp_path / "archive"
    archive.mkdir()
    moments = random.Random(7)
    kills = 0
    for attempt in range(6):
        process = start(landing, "max")
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            # All of them together take about a second.
            time.sleep(moments.uniform(0.01, 0.25))
            kills += process.poll() is None
        finally:
            # For the last attempts, let it finish.
            if attempt < 5:
                process.kill()
            process.communicate(timeout=60)
        if consumed:
            for path in visible(landing):
                assert not (archive / path.name).exists()
                path.rename(archive / path.name)
        if attempt >= 5:
            break
    assert process.returncode == 0
    assert kills >= 1
    expected = generate(GeneratorOptions(trips=4000)).select(list(TRIP_KEY)).to_pylist()
    assert trips(visible(archive if consumed else landing)) == Counter(tuple(row.values()) for row in expected)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_at_once_in_good_order(tmp_path, number):
    # A file every 0.2 s.
    process = start(tmp_path, "4500")
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 30
        while len(visible(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        sent = time.monotonic()
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert time.monotonic() - sent < 20
    assert process.returncode == 0, errors
    assert output == f"{len(visible(tmp_path))} False\n"
