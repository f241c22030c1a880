"""Random sequences of savepoints, restores, stops and kills: what is written equals a batch computation.

Each action is a real command in a process of its own; some of those are killed in the middle. The seed is
STREAMWARDEN_TEST_SEED, the number of actions STREAMWARDEN_TEST_ACTIONS.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from streamwarden.errors import StreamwardenError
from streamwarden.model.operation import Operation
from streamwarden.model.spec import RetentionSpec
from streamwarden.operations.deploy import deploy_job
from streamwarden.runtime.operation_lock import active_operation
from streamwarden.runtime.processes import kill
from streamwarden.savepoints import catalog
from streamwarden.savepoints.verify import verify
from streamwarden.store.layout import savepoint_key
from streamwarden.supervision import driver_control
from streamwarden.supervision.observe import observe
from tests.integration.conftest import BY, REPOSITORY, Place
from tests.integration.fleet import JOBS, Fleet

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(7200)]

WEIGHTS = {
    "take": 4,
    "take, killed": 2,
    "take with stop": 1,
    "kill the driver": 4,
    "restore": 3,
    "restore, killed": 2,
    "stop and deploy": 1,
}


class Actions:
    def __init__(self, place: Place, chance: random.Random) -> None:
        self.place = place
        self.chance = chance
        self.done: Counter[str] = Counter()

    def act(self) -> None:
        what = self.chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
        job = self.chance.choice(JOBS)
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {what}: {job}\n")
        if what == "take":
            self._command("savepoint", job, "--no-verify")
        elif what == "take, killed":
            self._command("savepoint", job, "--no-verify", kill_after=self.chance.uniform(0.6, 2.5))
        elif what == "take with stop":
            self._command("savepoint", job, "--no-verify", "--stop")
            self._settled(job)
            driver_control.start(self.place.workspace, job, by=BY)
        elif what == "kill the driver":
            seen = observe(self.place.workspace, job)
            process = seen.heartbeat.process if seen.heartbeat else seen.launch.process if seen.launch else None
            if process is None or not kill(process):
                return
        elif what == "stop and deploy":
            driver_control.stop(self.place.workspace, job, by=BY)
            deploy_job(self.place.workspace, job, by=BY)
        else:
            known = catalog.savepoints(self.place.workspace, job)
            if not known:
                return
            chosen = self.chance.choice(known).manifest.id
            after = self.chance.uniform(0.6, 20.0) if what == "restore, killed" else None
            self._command("restore", job, "--savepoint", chosen, kill_after=after)
            if after is not None and self.chance.random() < 0.5:
                # The same again goes on where the killed one was; otherwise whoever supervises does.
                self._command("restore", job, "--savepoint", chosen)
        self.done[what] += 1

    def _command(self, *words: str, kill_after: float | None = None) -> None:
        workspace = self.place.workspace
        command = [sys.executable, "-m", "tests.integration.slow_command", *words, "--profile", "test"]
        environment = {**os.environ, "STREAMWARDEN_CONFIG": str(self.place.config)}
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = process.communicate(timeout=kill_after or 600)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            said += "killed"
        sys.stdout.write("".join(f"    {line}\n" for line in said.splitlines()[-6:]))
        # What a job that was just killed can't do is a clear error, and nothing else.
        known = ("SAVEPOINT_NOTHING", "SAVEPOINT_OUTRUN", "OPERATION_RUNNING", "RESTORE_UNHEALTHY", "STOP_TIMED_OUT")
        if process.returncode not in (0, -9):
            assert any(code in said for code in known), said
        assert workspace is self.place.workspace

    def _settled(self, job: str) -> None:
        while active_operation(self.place.workspace, job) is not None:
            time.sleep(0.2)


def check_catalogue(place: Place) -> None:
    """Whatever was killed: after housekeeping there are whole savepoints, and nothing else."""
    workspace = place.workspace
    keep = RetentionSpec.model_validate(
        {name: {"count": None} for name in ("periodic", "pre_restore", "pre_rollout", "suspend")}
    )
    for job in JOBS:
        catalog.housekeeping(workspace, job, keep)
        known = {one.manifest.id for one in catalog.savepoints(workspace, job)}
        assert set(workspace.files.folders(f"savepoints/{job}")) == known
        for name in known:
            assert any(workspace.files.walk(savepoint_key(job, name)))
    every = [one for job in JOBS for one in catalog.savepoints(workspace, job)]
    found = verify(workspace, every, by=BY)
    assert {name: one.problems for name, one in found.items() if one.problems} == {}


def run_sequence(fleet: Fleet, seed: int, actions: int) -> Counter[str]:
    chance = random.Random(seed)
    place = fleet.place
    with fleet:
        fleet.await_tables()
        work = Actions(place, chance)
        for _ in range(actions):
            time.sleep(chance.uniform(0.0, 4.0))
            try:
                work.act()
            except StreamwardenError as error:
                # A person's command that meets an operation, or a driver that was killed meanwhile.
                assert error.retryable, error
                sys.stdout.write(f"    {error.code}\n")
            assert not fleet.supervisor.gave_up, fleet.supervisor.gave_up
        for job in JOBS:
            work._settled(job)
            desired = place.documents(job).desired.read()
            if desired is not None and desired.state == "suspended":
                driver_control.start(place.workspace, job, by=BY)
        fleet.settle()
    fleet.stop_and_compare(f"seed {seed}: {dict(work.done)}")
    check_catalogue(place)
    for job in JOBS:
        last: Operation | None = place.documents(job).operation.read()
        assert last is None or last.state in ("done", "failed", "rolled back", "running")
    return work.done


def test_a_random_sequence_ends_equal_to_batch(place: Place) -> None:
    seed = int(os.environ.get("STREAMWARDEN_TEST_SEED", "7"))
    actions = int(os.environ.get("STREAMWARDEN_TEST_ACTIONS", "12"))
    done = run_sequence(Fleet(place, speed=1_200), seed, actions)
    sys.stdout.write(f"sequence of seed {seed}: {dict(done)}\n")
