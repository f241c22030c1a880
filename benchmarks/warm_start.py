"""From a kill, a deploy and a restore to the first committed batch, and a rescale, with a warm spare and without.

Run by ``make bench-start``, after the benchmark of a start itself. A real driver runs an aggregation with one state row
for each key, under a load of 5,000 rows a second. ``streamwarden supervise`` watches it.

Each is timed until the first batch after it is committed. A kill is ``kill -9`` of the driver and its JVM. A deploy is
of the stopped job. A restore takes the newest savepoint, and begins with the command.

Of a rescale only the step *start Spark* is timed, between 4 and 8 partitions in turn. Less than a second counts as
gone: the step then only takes the spare.

With and without a spare alternate. Medians count.

Options: ``--runs``, ``--keys`` (of the restore; the others have 10,000), ``--only`` (some of the four).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.keyed_job import JOB, KeyedJob, Load, await_spare
from benchmarks.report import goal_met, let_drivers_import, print_machine
from benchmarks.rescale import seconds_of_steps, tell
from streamwarden.formats.checkpoint import CheckpointReader
from streamwarden.model.operation import StepName
from streamwarden.model.savepoint import Origin
from streamwarden.operations.deploy import deploy_job
from streamwarden.operations.rescale import rescale
from streamwarden.operations.restore import restore
from streamwarden.runtime import processes, spares
from streamwarden.runtime.spares import SPARES_ENV
from streamwarden.savepoints.take import take
from streamwarden.store.documents import JobDocuments
from streamwarden.store.effective_spec import effective_spec
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import Phase, observe

BY = "benchmark"
KEYS = 10_000
GOALS = {
    "kill": ("kill_to_batch_warm_s", 8),
    "deploy": ("deploy_to_batch_warm_s", 8),
    "restore": ("restore_to_batch_warm_s", 12),
    "rescale": ("rescale_start_spark_warm_s", 1),
}
_FEW_KEYS = ("kill", "deploy", "rescale")


def main() -> int:
    """Measure, and print a line for each goal; exit with status 1 if one is missed."""
    parser = argparse.ArgumentParser(description="Kills, deploys and restores, with a warm spare and without.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", choices=list(GOALS), default=list(GOALS))
    given = parser.parse_args()
    let_drivers_import()
    found: dict[str, list[float]] = {}
    few = tuple(kind for kind in _FEW_KEYS if kind in given.only)
    many = tuple(kind for kind in given.only if kind not in _FEW_KEYS)
    for keys, kinds in ((KEYS, few), (given.keys, many)):
        if not kinds:
            continue
        with tempfile.TemporaryDirectory(prefix="warm-start-") as folder:
            for kind, warm, seconds in _measured(Path(folder), keys, kinds, given.runs):
                name = f"{kind}_{'warm' if warm else 'cold'}"
                found.setdefault(name, []).append(seconds)
                print(f"{name}, {keys:,} keys: {seconds:.1f} s", flush=True)
    print_machine(given.runs)
    for kind in given.only:
        print(f"{kind}: {statistics.median(found[f'{kind}_cold']):.1f} s without a spare")
    met = [goal_met(GOALS[kind][0], statistics.median(found[f"{kind}_warm"]), GOALS[kind][1]) for kind in given.only]
    return 0 if all(met) else 1


def _measured(folder: Path, keys: int, kinds: tuple[str, ...], runs: int) -> Iterator[tuple[str, bool, float]]:
    keyed = KeyedJob(folder, keys, interval=1.0, files=20)
    keyed.fill()
    _spares(1)
    deploy_job(keyed.workspace, JOB, by=BY)
    keyed.await_rows(JOB, keys)
    act: dict[str, Callable[[KeyedJob], float]] = {
        "kill": _kill,
        "deploy": _deploy,
        "restore": _restore,
        "rescale": _rescale,
    }
    try:
        with Load(keyed.write_some):
            for _ in range(runs):
                for warm in (True, False):
                    for kind in kinds:
                        _await_batches(keyed, 5)
                        if warm:
                            await_spare(keyed.workspace)
                        _spares(int(warm))
                        seconds = act[kind](keyed)
                        _spares(1)
                        yield kind, warm, seconds
    finally:
        driver_control.stop(keyed.workspace, JOB, by=BY)
        for spare in spares.living(keyed.workspace):
            processes.kill(spare.process)


def _spares(number: int) -> None:
    """Set the number of spares that a start takes: without one it takes none, and its driver keeps none."""
    os.environ[SPARES_ENV] = str(number)


def _reader(keyed: KeyedJob) -> CheckpointReader:
    reference = JobDocuments(keyed.workspace.storage, JOB).checkpoint.read()
    assert reference is not None
    return CheckpointReader(keyed.workspace.storage, reference.path)


def _await_batches(keyed: KeyedJob, number: int) -> None:
    batch = _reader(keyed).last_commit() or 0
    driver_control.wait_for(
        keyed.workspace,
        JOB,
        lambda seen: bool(seen.heartbeat and (seen.heartbeat.batch or 0) >= batch + number),
        timeout=300,
        what=f"{number} batches",
    )


def _until_batch(keyed: KeyedJob, began: float, before: int) -> float:
    while (_reader(keyed).last_commit() or 0) <= before:
        assert time.monotonic() - began < 300, observe(keyed.workspace, JOB)
        time.sleep(0.05)
    return time.monotonic() - began


def _kill(keyed: KeyedJob) -> float:
    command = [sys.executable, "-m", "streamwarden.cli", "supervise", JOB, "--profile", "bench"]
    environment = {**os.environ, "STREAMWARDEN_CONFIG": str(keyed.workspace.config)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as supervisor:
        try:
            time.sleep(5)
            before = _reader(keyed).last_commit() or 0
            heartbeat = observe(keyed.workspace, JOB).heartbeat
            assert heartbeat is not None
            began = time.monotonic()
            processes.kill(heartbeat.process)
            return _until_batch(keyed, began, before)
        finally:
            supervisor.terminate()


def _deploy(keyed: KeyedJob) -> float:
    driver_control.stop(keyed.workspace, JOB, by=BY)
    assert observe(keyed.workspace, JOB).phase is not Phase.RUNNING
    before = _reader(keyed).last_commit() or 0
    began = time.monotonic()
    deploy_job(keyed.workspace, JOB, by=BY)
    return _until_batch(keyed, began, before)


def _restore(keyed: KeyedJob) -> float:
    manifest = take(keyed.workspace, JOB, origin=Origin.MANUAL, by=BY)
    began = time.monotonic()
    restore(keyed.workspace, JOB, savepoint=manifest.id, by=BY)
    return _until_batch(keyed, began, manifest.batch)


def _rescale(keyed: KeyedJob) -> float:
    partitions = 8 if effective_spec(keyed.workspace, JOB).state.partitions == 4 else 4
    done = rescale(keyed.workspace, JOB, partitions=partitions, mode="online", by=BY)
    tell(keyed.keys, "rescale", partitions, done)
    return seconds_of_steps(done)[StepName.START_SPARK]


if __name__ == "__main__":
    sys.exit(main())
