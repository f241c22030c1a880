"""The run's figures: by fault, and against the goals."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from tests.chaos.injections import ColdStart, Record
from tests.chaos.plan import JOBS, WORDS, Kind

# One and a half times the quickest start before there were spares: 13 s. A ratio to today's starts would judge the
# spares: a start that finds a warm one takes 4 s.
KILL_TO_BATCH_S = 20.0
KILLS_FOR_A_GOAL = 3


@dataclass(frozen=True)
class Goal:
    """A figure beside what it should be.

    Parameters
    ----------
    name, value, goal
        The figure.
    at_least
        Whether more is better; otherwise less is.
    """

    name: str
    value: float
    goal: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it is what it should be."""
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def __str__(self) -> str:
        return f"{self.name} {self.value:g} {self.goal:g} {'ok' if self.met else 'short'}"


def table_of(records: Sequence[Record]) -> Table:
    """Return the table by fault, and of all: how many, and seconds to the next batch and to being watched again."""
    shown = Table(title="Faults; seconds from the fault, what the harness held up included")
    shown.add_column("fault")
    for column in ("n", "held", "next batch: median", "worst", "watched again: median", "worst", "wrong"):
        shown.add_column(column, justify="right")
    for kind in Kind:
        if found := [record for record in records if record.fault.kind is kind]:
            shown.add_row(WORDS[kind], *_cells(found))
    shown.add_section()
    shown.add_row("all", *_cells(records))
    return shown


def kill_ratios(records: Iterable[Record], starts: Iterable[ColdStart]) -> dict[str, dict[str, float]]:
    """Return for each job the calm kills' recovery beside its cold starts, medians in seconds, and their ratio.

    A job without both is left out.
    """
    found = {}
    kills, colds = list(records), list(starts)
    for job in JOBS:
        mine = [record for record in kills if record.fault.calm and record.fault.job == job]
        back = [record.recovery_s for record in mine if record.recovery_s is not None]
        cold = [start for start in colds if start.job == job]
        if back and cold:
            recovery = statistics.median(back)
            process = statistics.median(start.process_s for start in cold)
            dag = statistics.median(start.dag_s for start in cold)
            found[job] = {
                "recovery_s": round(recovery, 2),
                "launched_after_s": round(statistics.median(r.launched_s or 0.0 for r in mine), 2),
                "cold_start_s": round(process, 2),
                "cold_start_by_dag_s": round(dag, 2),
                "ratio": round(recovery / process, 2),
                "ratio_by_dag": round(recovery / dag, 2),
                "n": float(len(back)),
            }
    return found


def _cells(found: Sequence[Record]) -> tuple[str, ...]:
    batch = [record.recovery_s for record in found if record.recovery_s is not None]
    watched = [record.supervised_s for record in found if record.supervised_s is not None]
    held = [record.held_s for record in found]
    wrong = sum(1 for record in found if record.wrong)
    return (str(len(found)), *_pair(held)[:1], *_pair(batch), *_pair(watched), str(wrong))


def _pair(values: Sequence[float]) -> tuple[str, str]:
    return (_text(statistics.median(values)), _text(max(values))) if values else ("", "")


def _text(value: float) -> str:
    return f"{value:.1f}"
