"""Which fault is injected when into which job: a seeded plan that covers all combinations evenly."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

JOBS = ("ingest_trips", "zone_windows", "card_sessions")


class Kind(StrEnum):
    """What is done."""

    DRIVER_BOTH = "driver_both"
    DRIVER_PYTHON = "driver_python"
    DRIVER_JVM = "driver_jvm"
    DRIVER_SPARES = "driver_spares"
    DRIVER_FROZEN = "driver_frozen"
    DRIVER_WOKEN = "driver_woken"
    TASK_CLEARED = "task_cleared"
    TASK_FAILED = "task_failed"
    TASK_SUCCESS = "task_success"
    DAG_PAUSED = "dag_paused"
    WORKER_KILLED = "worker_killed"
    TRIGGERER_KILLED = "triggerer_killed"
    TRIGGERER_STALLED = "triggerer_stalled"
    TRIGGERER_SECOND = "triggerer_second"
    SCHEDULER_KILLED = "scheduler_killed"
    API_KILLED = "api_killed"
    API_AWAY = "api_away"
    DAG_PROCESSOR_KILLED = "dag_processor_killed"
    POSTGRES_RESTARTED = "postgres_restarted"


WORDS = {
    Kind.DRIVER_BOTH: "driver: Python and JVM killed (-9)",
    Kind.DRIVER_PYTHON: "driver: Python killed (-9)",
    Kind.DRIVER_JVM: "driver: JVM killed (-9)",
    Kind.DRIVER_SPARES: "driver: Python, JVM and all spares killed (-9)",
    Kind.DRIVER_FROZEN: "driver: frozen past its lease",
    Kind.DRIVER_WOKEN: "driver: frozen past its lease, woken before it is replaced",
    Kind.TASK_CLEARED: "supervise task cleared",
    Kind.TASK_FAILED: "supervise task marked failed, DAG triggered again",
    Kind.TASK_SUCCESS: "supervise task marked success, DAG triggered again",
    Kind.DAG_PAUSED: "DAG paused, driver killed, DAG unpaused",
    Kind.WORKER_KILLED: "driver killed, and the worker that restarts it (-9)",
    Kind.TRIGGERER_KILLED: "triggerer killed (-9), started again",
    Kind.TRIGGERER_STALLED: "triggerer stalled past its threshold beside a second one, woken",
    Kind.TRIGGERER_SECOND: "a second triggerer for a while, killed (-9)",
    Kind.SCHEDULER_KILLED: "scheduler with its workers killed (-9), started again",
    Kind.API_KILLED: "API server killed (-9), started again",
    Kind.API_AWAY: "API server killed (-9), away for longer than supervise has tries",
    Kind.DAG_PROCESSOR_KILLED: "DAG processor killed (-9), started again",
    Kind.POSTGRES_RESTARTED: "Postgres restarted, immediate",
}


class Moment(StrEnum):
    """When, as the job sees it."""

    IN_BATCH = "in a batch"
    BETWEEN = "between batches"
    STARTING = "while it starts"
    SAVEPOINT = "during a savepoint"
    RECOVERING = "while it recovers from another fault"


_DRIVER_KILL = (Moment.IN_BATCH, Moment.BETWEEN, Moment.STARTING, Moment.SAVEPOINT)
_WHOLE_OR_NOT = (Moment.IN_BATCH, Moment.RECOVERING)

MOMENTS: dict[Kind, tuple[Moment, ...]] = {
    Kind.DRIVER_BOTH: _DRIVER_KILL,
    Kind.DRIVER_PYTHON: _DRIVER_KILL,
    Kind.DRIVER_JVM: _DRIVER_KILL,
    Kind.DRIVER_SPARES: (Moment.IN_BATCH, Moment.BETWEEN),
    Kind.DRIVER_FROZEN: (Moment.IN_BATCH, Moment.BETWEEN, Moment.STARTING),
    Kind.DRIVER_WOKEN: (Moment.IN_BATCH, Moment.BETWEEN),
    Kind.TASK_CLEARED: _WHOLE_OR_NOT,
    Kind.TASK_FAILED: _WHOLE_OR_NOT,
    Kind.TASK_SUCCESS: _WHOLE_OR_NOT,
    Kind.DAG_PAUSED: (Moment.IN_BATCH,),
    # There is a worker only then.
    Kind.WORKER_KILLED: (Moment.RECOVERING,),
    Kind.TRIGGERER_KILLED: _WHOLE_OR_NOT,
    Kind.TRIGGERER_STALLED: _WHOLE_OR_NOT,
    Kind.TRIGGERER_SECOND: _WHOLE_OR_NOT,
    Kind.SCHEDULER_KILLED: _WHOLE_OR_NOT,
    Kind.API_KILLED: _WHOLE_OR_NOT,
    # Only then it has something to do: each of its tries dies before it begins.
    Kind.API_AWAY: (Moment.RECOVERING,),
    Kind.DAG_PROCESSOR_KILLED: _WHOLE_OR_NOT,
    Kind.POSTGRES_RESTARTED: _WHOLE_OR_NOT,
}

SHARED = frozenset(
    {
        Kind.TRIGGERER_KILLED,
        Kind.TRIGGERER_STALLED,
        Kind.TRIGGERER_SECOND,
        Kind.SCHEDULER_KILLED,
        Kind.API_KILLED,
        Kind.API_AWAY,
        Kind.DAG_PROCESSOR_KILLED,
        Kind.POSTGRES_RESTARTED,
    }
)
"""Faults of Airflow's own parts, which all jobs have in common: one of them at a time."""

# The first round, of which a short run sees the beginning: from each family the one that tells most.
_FIRST = (
    Kind.WORKER_KILLED,
    Kind.DRIVER_FROZEN,
    Kind.TASK_FAILED,
    Kind.POSTGRES_RESTARTED,
    Kind.TRIGGERER_KILLED,
    Kind.SCHEDULER_KILLED,
    Kind.DRIVER_JVM,
    Kind.API_KILLED,
    Kind.TASK_CLEARED,
    Kind.TRIGGERER_STALLED,
    Kind.DRIVER_PYTHON,
    Kind.DAG_PAUSED,
    Kind.DRIVER_WOKEN,
    Kind.TASK_SUCCESS,
    Kind.TRIGGERER_SECOND,
    Kind.DRIVER_BOTH,
    Kind.DRIVER_SPARES,
    Kind.DAG_PROCESSOR_KILLED,
    Kind.API_AWAY,
)


@dataclass(frozen=True)
class Fault:
    """One planned injection.

    Parameters
    ----------
    number
        Counts from 1.
    kind
        What.
    moment
        When, as `job` sees it.
    job
        The job that it is about: for a fault of Airflow's own parts the one whose moment is waited for.
    seed
        For the delays within it.
    calm
        Whether it is one of the first kills, which are measured beside cold starts while Airflow is whole.
    """

    number: int
    kind: Kind
    moment: Moment
    job: str
    seed: int
    calm: bool = False


def calm_rounds(count: int) -> int:
    """Return how many kills of each job are measured beside cold starts in a run of so many faults."""
    return 3 if count >= 60 else 1 if count >= len(JOBS) else 0


def make_plan(count: int, seed: int, only: Sequence[Kind] = ()) -> list[Fault]:
    """Plan faults, the calm ones first.

    Every kind occurs once before any occurs again. Each kind takes its combinations of moment and job in turn. Among
    the remaining ones, the job with the fewest faults so far comes first: the three jobs' lanes then have equal length.

    Parameters
    ----------
    count
        How many.
    seed
        The same gives the same plan.
    only
        Kinds to choose from, without the calm ones; default all.
    """
    chance = random.Random(seed)
    planned: list[Fault] = []

    def add(kind: Kind, moment: Moment, job: str, *, calm: bool = False) -> None:
        planned.append(Fault(len(planned) + 1, kind, moment, job, chance.randrange(2**32), calm))

    if not only:
        for _ in range(calm_rounds(count)):
            for job in JOBS:
                add(Kind.DRIVER_BOTH, Moment.IN_BATCH, job, calm=True)
    load: Counter[str] = Counter()
    left: dict[Kind, list[tuple[Moment, str]]] = {}
    round_: list[Kind] = []
    kinds = [kind for kind in _FIRST if not only or kind in only]
    first = True
    while len(planned) < count:
        if not round_:
            round_ = list(kinds) if first else chance.sample(kinds, len(kinds))
            first = False
        kind = round_.pop(0)
        if not left.get(kind):
            cells = [(moment, job) for moment in MOMENTS[kind] for job in JOBS]
            left[kind] = chance.sample(cells, len(cells))
        moment, job = min(left[kind], key=lambda cell: load[cell[1]])
        left[kind].remove((moment, job))
        load[job] += 1
        add(kind, moment, job)
    return planned[:count]
