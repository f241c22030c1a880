"""kill -9 at every step boundary of a rescale and inside its steps: it ends as it was, or as it shall be."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streamwarden.model.record import utc_now
from streamwarden.model.supervision import Supervision
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.supervision import driver_control
from streamwarden.supervision.act import restart
from streamwarden.supervision.decide import Action, decide
from streamwarden.supervision.observe import Phase, observe
from tests.integration.conftest import REPOSITORY, Place
from tests.integration.killing_command import BOTH, FROZEN, THE_DRIVER, THE_RESCALE, THE_STANDBY
from tests.integration.test_rescale import Counts, running

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(7200)]

BEFORE = ("precheck", "start Spark")
COPY = ("pre-rescale savepoint", "copy", "digest before", "repartition", "digest after")
AFTER = ("switch", "start", "first batch")
BACK = "plain, and back"
STEPS = {
    "fast": (*BEFORE, *COPY, "follow", "stop", "follow to the end", *AFTER, "digest at the stop", "catch up"),
    "plain": (*BEFORE, "stop", *COPY, *AFTER, "catch up"),
    # With no time to get healthy: every one goes back.
    BACK: ("roll back", "wait for health after the rollback"),
}
STANDBY = (
    *("start Spark", "copy", "digest before", "repartition", "digest after", "follow", "follow to the end"),
    # Where it only waits for its turn. Then it is the driver.
    *("switch", "start"),
)
# Between the old driver's end, which takes some seconds from the stop on, and the new one's launch.
WITHOUT_DRIVER = {"fast": ("start",), "plain": ("digest before", "repartition", "digest after", "switch", "start")}
PARALLELISMS = (1, 2, 3, 5, 8)


# Of a driver that can't be heard for longer than its lease, and then goes on.
FREEZES = {
    "fast": ("start Spark", "follow", "stop", "follow to the end", "first batch", "digest at the stop"),
    "plain": ("start Spark", "stop", "pre-rescale savepoint", "first batch", "catch up"),
    BACK: ("roll back", "wait for health after the rollback"),
}


Moment = tuple[str, str, str, float]
"""Way, step, whom and seconds after the step's begin of a kill."""


class CountsAndRows(Counts):
    """The job `counts` with a second table, without keys, that must hold each row once."""

    def __init__(self, place: Place, **fields: Any) -> None:
        super().__init__(place, "tests.integration.jobs.counts_and_rows", **fields)
        second = {"table": "rows_seen", "mode": "append", "output": "rows"}
        place.job("counts", sinks=[{"table": "counts", "mode": "upsert", "keys": ["key"]}, second])
        self.ids = itertools.count()
        self.added: Counter[int] = Counter()

    def add(self, keys: list[int]) -> None:
        uri, options = self.place.workspace.delta_rs("rows")
        ids = [next(self.ids) for _ in keys]
        write_deltalake(uri, pa.table({"key": keys, "id": ids}), mode="append", storage_options=options)
        self.expected.update(keys)
        self.added.update(ids)

    def check(self) -> None:
        super().check()
        # It is the second one to be written of a batch.
        deadline = time.monotonic() + 60
        while (found := Counter(row["id"] for row in self.place.rows("rows_seen"))) != self.added:
            if time.monotonic() >= deadline:
                break
            time.sleep(0.3)
        assert {"lost": self.added - found, "too many": found - self.added} == {"lost": {}, "too many": {}}


class Rows(threading.Thread):
    """Rows that land all the time."""

    def __init__(self, counts: Counts, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.counts = counts
        self.keys = random.Random(chance.random())
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(4):
            self.counts.add([self.keys.randrange(600) for _ in range(20)])

    def __enter__(self) -> Rows:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join()


def supervise_for(place: Place, seconds: float) -> str | None:
    """Do what a supervisor does, for so long; return whom it has started."""
    started = None
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        seen = observe(place.workspace, "counts")
        verdict = decide(seen, place.documents("counts").supervision.read() or Supervision())
        due = verdict.not_before is None or utc_now() >= verdict.not_before
        if verdict.action is Action.RESTART and due:
            started = restart(place.workspace, seen, by="test", why=verdict.why) or started
        time.sleep(0.5)
    return started


def moments(chance: random.Random, ways: Sequence[str]) -> list[Moment]:
    """Return every kill of these ways, in any order."""
    every = [(way, step) for way in ways for step in STEPS[way]]
    boundaries = [(way, step, whom, 0.0) for way, step in every for whom in whoms(way, step)]
    inside = [(way, step, chance.choice([*whoms(way, step), BOTH]), chance.uniform(0, 3)) for way, step in every]
    return chance.sample([*boundaries, *inside], len(boundaries) + len(inside))


def whoms(way: str, step: str) -> list[str]:
    """Return who is there to be killed as a step begins."""
    there = [THE_RESCALE]
    if step not in WITHOUT_DRIVER.get(way, ()):
        there.append(THE_DRIVER)
    if step in STANDBY:
        there.append(THE_STANDBY)
    return there


def kill_in_rescales(place: Place, chance: random.Random, kills: list[Moment]) -> Counter[str]:
    """Kill at these moments; return what became of the rescales."""
    # More files in a batch than land while it runs, also on a slow machine.
    counts = CountsAndRows(place, files=10, restarts={"max": 1000, "backoff": "1s", "backoff_max": "1s"})
    counts.add(list(range(500)))
    deploy_job(place.workspace, "counts", by="test")
    running(place)
    ended: Counter[str] = Counter()
    for count, (way, step, whom, after) in enumerate(kills, 1):
        # A rescale of a job that only starts is refused: no moment of it would come. Rows to wait for may all be gone.
        place.wait("counts", lambda seen: seen.phase is Phase.RUNNING, "the job to run")
        was = counts.partitions()
        wanted = chance.choice([parallelism for parallelism in PARALLELISMS if parallelism != was])
        words = ["rescale", "counts", "--partitions", str(wanted), "--way", way.split(",")[0]]
        if way == BACK:
            words += ["--health-timeout", "1"]
        with Rows(counts, chance):
            said = run(place, "tests.integration.killing_command", step, whom, str(after), *words)
            killed = "killed" in said.splitlines()
            left = place.documents("counts").operation.read()
            if left is not None and left.state == "running" and chance.random() < 0.5:
                # As in life: a supervisor is quicker than a task's next try, and batches are committed in between.
                started = supervise_for(place, chance.uniform(2, 25))
                sys.stdout.write(f"a supervisor has started {started}\n")
            if left is not None and left.state == "running":
                assert active_operation(place.workspace, "counts") is None, said
                said += run(place, "streamwarden.cli", "rescale", "counts", "--resume")
            seen = observe(place.workspace, "counts")
            if not seen.phase.alive:
                # As a supervisor would.
                driver_control.start(place.workspace, "counts", by="test")
            assert counts.partitions() in (was, wanted), said
        counts.check()
        left = place.documents("counts").operation.read()
        assert left is None or left.state != "running", said
        state = left.state if left is not None else "not begun"
        now = counts.partitions()
        assert now == wanted if state == "done" else now == was, said
        ended[state if killed else "not killed"] += 1
        if not killed:
            sys.stdout.write(said)
        sys.stdout.write(
            f"{time.strftime('%H:%M:%S')} {count}: {was} -> {wanted}, {way}, {whom}, {after:.1f} s after"
            f" {step!r} began: {state}{'' if killed else ' before the kill'}\n"
        )
    driver_control.stop(place.workspace, "counts", by="test")
    return ended


def run(place: Place, module: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=REPOSITORY,
        env={**os.environ, "STREAMWARDEN_CONFIG": str(place.config), "STREAMWARDEN_PROFILE": "test"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    # Done, went back, or killed; a mistake in the command would be 1 with a traceback.
    assert "Traceback" not in done.stdout, done.stdout
    return done.stdout


# Two tests, so that they may run beside each other: both together take two hours on two cores.
@pytest.mark.parametrize("ways", [("fast",), ("plain", BACK)], ids=["fast", "plain"])
def test_killed_at_every_moment_it_ends_as_it_was_or_as_it_shall_be(place: Place, ways: tuple[str, ...]) -> None:
    """STREAMWARDEN_TEST_KILLS of each, default all: 53 and 44; in an order of STREAMWARDEN_TEST_SEED."""
    given = os.environ.get("STREAMWARDEN_TEST_KILLS")
    seed = int(os.environ.get("STREAMWARDEN_TEST_SEED", "5"))
    chance = random.Random(seed)
    ended = kill_in_rescales(place, chance, moments(chance, ways)[: int(given) if given else None])
    sys.stdout.write(f"{', '.join(ways)}, seed {seed}: {dict(ended)}\n")
    # A step that never came, of a rescale that needed none, is no kill; nor is one that found nobody.
    assert ended["not killed"] <= sum(ended.values()) / 4


def test_whose_driver_freezes_and_wakes_it_ends_as_it_was_or_as_it_shall_be(place: Place) -> None:
    chance = random.Random(int(os.environ.get("STREAMWARDEN_TEST_SEED", "5")))
    # Where it is asked to stop also right after that: it has not read it yet, or is in its last batch.
    freezes = [(way, step, FROZEN, chance.choice([0.0, 0.3, 1.5])) for way in FREEZES for step in FREEZES[way]]
    ended = kill_in_rescales(place, chance, chance.sample(freezes, len(freezes)))
    sys.stdout.write(f"frozen: {dict(ended)}\n")
    assert ended["not killed"] <= sum(ended.values()) / 4
