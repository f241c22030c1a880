"""Our driver against what a user might pick instead, over the same rows, each with an equal result.

Run by ``make bench-peers``. The rows are three months of trips 24 times, about five million, in the order of their
arrival; a tenth is up to ten minutes late. Two cores each, exactly once, start-up apart:

- ours: a real driver from the command line's parts, Delta tables, a commit and a checkpoint for each batch. From when
  the rows are committed to the end of the last batch; a first file before that starts the JVM.
- Flink: PyFlink with RocksDB, incremental checkpoints every ten seconds, Parquet in, CSV files out. From the slope
  between a part of the rows and all of them, since start and end are of a bounded run. SQL, and but for windows a
  KeyedProcessFunction in process and in thread mode, over fewer rows.
- Quix: see ``quix_job.py``.

*lost by a kill* and *by a rescale*: a run is interrupted in the middle. How many seconds later does it end than one
over the same rows that is not? Ours is restarted by its supervisor and rescaled by an operation; a peer's process
is started again at once from its newest checkpoint.

Options: ``--trips`` (TLC's files; default the generator), ``--share`` (of the rows, for a trial), ``--only``,
``--runs``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from benchmarks.peers import data, flink
from benchmarks.peers.check import check_csv
from benchmarks.peers.flink import Flink
from benchmarks.peers.ours import OurJob
from benchmarks.peers.quix import Quix
from benchmarks.report import REPOSITORY, goal_met, let_drivers_import, print_machine

JOBS = ("windows", "statistics", "sessions", "velocity")
PYTHON_ROWS = 160_000
"""Rows for PyFlink's functions in Python and for Quix, which do some thousands a second; a quarter for the slope."""


class Peers:
    """Measures each peer and keeps the figures: rates in rows a second, times in seconds."""

    def __init__(self, rows: pa.Table, folder: Path, environments: Path) -> None:
        self.rows, self.folder, self.environments = rows, folder, environments
        self.figures: dict[str, list[float]] = {}

    def keep(self, name: str, value: float, more: str = "") -> None:
        """Keep and print a figure."""
        self.figures.setdefault(name, []).append(value)
        print(f"{name}: {value:,.1f} {more}", flush=True)

    def median(self, name: str) -> float:
        """Return a figure's median."""
        return statistics.median(self.figures[name])

    def ours(self, job: str) -> None:
        """Measure our driver."""
        with self._work() as work:
            one = OurJob(job, work)
            done = one.run(self.rows)
            said = one.check(self.rows)
        rate = done["rows"] / done["seconds"]
        self.keep(f"ours {job} rows/s", rate, f"({said}; {done['memory_gb']:.1f} GB at most)")

    def flink(self, job: str, form: str) -> None:
        """Measure PyFlink."""
        rows = self.rows if form == "sql" else self.rows.slice(0, min(PYTHON_ROWS, self.rows.num_rows))
        seconds = {}
        engine = Flink(self.environments)
        with self._work() as work:
            for share in (4, 1):
                part = rows.slice(0, rows.num_rows // share)
                source = data.write_halves(part, work / f"in-{share}", _files(form))
                done = engine.run(job, form, source, work / f"run-{share}")
                seconds[part.num_rows] = done["seconds"]
            said = check_csv(job, rows, work / "run-1" / "out")
        (few, short), (many, long) = sorted(seconds.items())
        rate = (many - few) / (long - short)
        self.keep(
            f"flink {form} {job} rows/s", rate, f"({said}; {long:.1f} s in all, {done['memory_gb']:.1f} GB at most)"
        )

    def quix(self, job: str) -> None:
        """Measure Quix Streams."""
        rows = self.rows.slice(0, min(PYTHON_ROWS, self.rows.num_rows))
        with self._work() as work:
            done, said = Quix(self.environments).run(job, rows, work)
        self.keep(
            f"quix {job} rows/s", rows.num_rows / done["seconds"], f"({said}; {done['memory_gb']:.1f} GB at most)"
        )

    def ours_lost(self, what: str) -> None:
        """Measure what an interruption costs our driver."""
        act: dict[str, Callable[[OurJob], None]] = {"kill": OurJob.kill, "rescale": lambda one: one.rescale(3)}
        seconds = {}
        for name in ("", what):
            with self._work() as work:
                one = OurJob("sessions", work, spares=1)
                seconds[name] = one.run(self.rows, act.get(name, lambda _: None))["seconds"]
                one.check(self.rows)
        self.keep(f"ours lost by a {what} s", seconds[what] - seconds[""], f"({seconds['']:.1f} s without)")

    def flink_lost(self, what: str, form: str) -> None:
        """Measure what an interruption costs Flink."""
        # In process mode the rows of the rates take five minutes each time.
        many = {"sql": self.rows.num_rows, "thread": PYTHON_ROWS, "process": PYTHON_ROWS // 4}[form]
        rows = self.rows.slice(0, min(many, self.rows.num_rows))
        engine = Flink(self.environments)
        with self._work() as work:
            source = data.write_halves(rows, work / "in", _files(form))
            whole = engine.run("sessions", form, source, work / "whole")["process_s"]
            flink.forget(work / "whole")
            slots = 3 if what == "rescale" else 2
            both = engine.run_interrupted(
                "sessions", form, source, work / "cut", after=whole / 2, slots=slots, kill=what == "kill"
            )
            said = check_csv("sessions", rows, work / "cut" / "out")
        self.keep(f"flink {form} lost by a {what} s", both - whole, f"({whole:.1f} s without; {said})")

    def quix_lost(self) -> None:
        """Measure what a kill costs Quix Streams. It has no rescale: its state follows the topic's partitions."""
        rows, seconds, said = self.rows.slice(0, min(PYTHON_ROWS, self.rows.num_rows)), {}, ""
        for kill in (False, True):
            with self._work() as work:
                done, said = Quix(self.environments).run("sessions", rows, work, kill=kill)
            seconds[kill] = done["seconds"]
        self.keep("quix lost by a kill s", seconds[True] - seconds[False], f"({seconds[False]:.1f} s without; {said})")

    def _work(self) -> tempfile.TemporaryDirectory[str]:
        return _Folder(dir=self.folder, ignore_cleanup_errors=True)


def _files(form: str) -> int:
    """One for each slot. Of small ones a slot reads both, one after the other, and the trips of the second are late."""
    return 2 if form == "sql" else 1


class _Folder(tempfile.TemporaryDirectory[str]):
    def __enter__(self) -> Path:  # type: ignore[override]
        return Path(super().__enter__())


def main() -> int:
    """Measure, and print a line for each goal; exit with status 1 if one is missed."""
    parser = argparse.ArgumentParser(description="Our driver against PyFlink and Quix Streams.")
    parser.add_argument("--trips", type=Path, nargs="*", default=[])
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="words of a measurement's name, such as flink or sessions"
    )
    given = parser.parse_args()
    let_drivers_import()
    rows = data.trips(given.trips)
    rows = rows.slice(0, int(rows.num_rows * given.share))
    print(f"{rows.num_rows:,} rows", flush=True)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        peers = Peers(rows, Path(folder), REPOSITORY / ".peers")
        plan: dict[str, Callable[[], None]] = {}
        for job in JOBS:
            plan[f"ours {job}"] = lambda job=job: peers.ours(job)  # type: ignore[misc]
            for form in ("sql",) if job == "windows" else ("sql", "thread", "process"):
                plan[f"flink {form} {job}"] = lambda job=job, form=form: peers.flink(job, form)  # type: ignore[misc]
            plan[f"quix {job}"] = lambda job=job: peers.quix(job)  # type: ignore[misc]
        for what in ("kill", "rescale"):
            plan[f"ours lost {what}"] = lambda what=what: peers.ours_lost(what)  # type: ignore[misc]
            for form in ("sql", "thread", "process"):
                plan[f"flink {form} lost {what}"] = lambda what=what, form=form: peers.flink_lost(what, form)  # type: ignore[misc]
        plan["quix lost kill"] = peers.quix_lost
        for _ in range(given.runs):
            for name, measure in plan.items():
                if all(word in name.split() for word in given.only):
                    measure()
    print_machine(given.runs)
    return 0 if all(goals(peers)) else 1


def goals(peers: Peers) -> list[bool]:
    """Print a line for each goal whose figures are there; return whether each is met."""
    wanted = [("windows", "flink sql", 1.0)]
    for job in ("sessions", "velocity"):
        wanted += [(job, "flink sql", 2), (job, "flink thread", 10), (job, "flink process", 20), (job, "quix", 10)]
    met = []
    if "ours windows rows/s" in peers.figures:
        met.append(goal_met("windows_rows_per_s", peers.median("ours windows rows/s"), 2_000_000, at_least=True))
    for job, peer, goal in wanted:
        ours, theirs = f"ours {job} rows/s", f"{peer} {job} rows/s"
        if {ours, theirs} <= peers.figures.keys():
            name = f"{job}_to_{peer.replace(' ', '_')}"
            met.append(goal_met(name, peers.median(ours) / peers.median(theirs), goal, at_least=True))
    for what in ("kill", "rescale"):
        for peer in ("flink sql", "flink thread", "flink process", "quix"):
            ours, theirs = f"ours lost by a {what} s", f"{peer} lost by a {what} s"
            if {ours, theirs} <= peers.figures.keys():
                name = f"lost_by_{what}_to_{peer.replace(' ', '_')}"
                met.append(goal_met(name, peers.median(ours) / peers.median(theirs), 1.0))
    return met


if __name__ == "__main__":
    sys.exit(main())
