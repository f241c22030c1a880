"""The main job on the stack, by what is published: deploy, savepoint, rescale, quality, gate, stop; equal to batch."""

from __future__ import annotations

import time
from typing import Any

from tests.compose.stack import JOBS, Stack, StackError

__all__ = ["Journey"]

_DRAIN_S = 900.0
"""The comparison alone took 132 s after 75 minutes of trips, on a slow day; the last sessions close after it began."""


class Journey:
    """Steps that a user takes in Airflow, by its REST.

    Parameters
    ----------
    stack
        Up.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._runs: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def deploy(self) -> None:
        """Wait for the DAGs, trigger those of the three jobs, and wait for the first commit of each."""
        stack, wanted = (
            self._stack,
            {*(f"job_{job}" for job in JOBS), "savepoint", "rescale", "quality", "gate", "stop"},
        )
        took = stack.until(lambda: wanted <= set(stack.client.dags()), 240, "the DAGs")
        if errors := stack.client.import_errors():
            raise StackError(f"DAGs with errors: {errors}")
        stack.say(f"{len(stack.client.dags())} DAGs, after {took:.0f} s")
        began = time.monotonic()
        for job in JOBS:
            self._runs[job] = stack.client.trigger_dag(f"job_{job}")
        stack.until(lambda: self._phases() == {"running"}, 400, "the drivers to run")
        stack.say(f"all drivers run after {time.monotonic() - began:.0f} s")
        stack.until(self._all_committed, 400, "the first commits")
        self._note("first commits", time.monotonic() - began)
        # With the bucket Spark is in the drivers.
        for service in ("driver-host", "spark-worker") if stack.profile == "cluster" else ("driver-host",):
            mapping = stack.compose(
                "exec", "-T", service, "sh", "-c", "grep -l '[.]jars/classes' /proc/[0-9]*/maps || true"
            )
            if len(mapping.split()) < len(JOBS):
                raise StackError(f"not every JVM in {service} uses the archive of Spark's classes: {mapping.split()}")

    def savepoint(self, job: str) -> None:
        """Take and verify a savepoint."""
        run = self._run("savepoint", {"job": job, "note": "compose-test"}, 300)
        taken = self._stack.client.xcom("savepoint", run, "take")["id"]
        if self._stack.client.xcom("savepoint", run, "verify") != {"verified": [taken]}:
            raise StackError(f"savepoint {taken} of {job} was not verified")

    def rescale(self, job: str, partitions: int) -> None:
        """Give a job another number of state partitions."""
        self._run("rescale", {"job": job, "partitions": partitions, "reason": "compose-test"}, 900)
        self._stack.all_commit(self._stack.versions(), 200)

    def quality(self) -> None:
        """Check the tables against their expectations."""
        self._run("quality", {}, 600)

    def metrics(self) -> None:
        """Start the profile ``monitoring``: Prometheus finds each job's driver, and evaluates its rules."""
        stack = self._stack
        began = time.monotonic()
        stack.compose(
            "--profile", "monitoring", "up", "--detach", "--wait", "--no-deps", "--no-build", *stack.engine.monitoring
        )
        stack.until(self._scraped, 120, "Prometheus to scrape each driver and evaluate each rule")
        self._note("metrics", time.monotonic() - began)

    def gate(self) -> None:
        """Open the gate, see good versions published; land a bad file, see it held, and accept it as a person would."""
        stack = self._stack
        stack.client.unpause("gate")
        took = stack.until(lambda: stack.ask("gate")["published"] is not None, 300, "the gate to publish")
        self._note("gate: published", took)
        # Its trips are of the next day: what landed after it would be too late for the windows.
        stack.compose("stop", "replay")
        landed = stack.ask("overcharge")
        took = stack.until(lambda: stack.ask("gate")["held"] is not None, 300, f"the gate to hold {landed['file']}")
        self._note("gate: held", took)
        stack.say(f"the gate holds, for {stack.ask('gate')['failures']}")
        self._run("gate_decide", {"table": "trips", "decision": "accept", "note": "was planted"}, 240)
        # A stop could come before the last sessions close.
        self.drain("drained again")

    def supervised(self) -> float:
        """Wait until Airflow is healthy and watches each job as before; return the seconds."""
        return self._stack.until(self._is_supervised, 480, "Airflow to supervise each job")

    def drain(self, name: str = "drained") -> None:
        """Let nothing more land, and wait until the tables are equal to a batch computation over what has landed."""
        stack = self._stack
        stack.compose("stop", "replay")
        found: dict[str, Any] = {}

        def equal() -> bool:
            nonlocal found
            found = stack.ask("verify")
            return bool(found["equal"])

        try:
            self._note(name, stack.until(equal, _DRAIN_S, "tables equal to batch"))
        except StackError as error:
            raise StackError(f"{error}\n" + "\n".join(found.get("differences", []))) from None
        stack.say(f"EQUAL TO BATCH: {found['files']} files landed, rows {found['tables']}")

    def resume(self) -> None:
        """Let trips land again."""
        self._stack.compose("start", "replay")

    def stop(self) -> None:
        """Stop all jobs by the stop DAG; their own runs succeed."""
        stack = self._stack
        self._run("stop", {"job": "all", "reason": "compose-test"}, 300)
        for job, run in self._runs.items():
            state = stack.client.wait_for_run(f"job_{job}", run, timeout=120)
            if state != "success":
                raise StackError(f"the run of job_{job} ended as {state}")
        found = stack.ask("verify")
        if not found["equal"]:
            raise StackError("after the stop:\n" + "\n".join(found["differences"]))

    def _all_committed(self) -> bool:
        return all(job["committed"] for job in self._stack.ask("state")["jobs"].values())

    def _is_supervised(self) -> bool:
        client = self._stack.client
        if any(part["status"] != "healthy" for part in client.health().values() if part.get("status") is not None):
            return False
        for job, run in self._runs.items():
            dag = f"job_{job}"
            if (state := client.dag_run(dag, run)["state"]) != "running":
                raise StackError(f"the run of {dag} is {state}")
            if client.task_state(dag, run, "supervise") != "deferred":
                return False
        return True

    def _scraped(self) -> bool:
        ask = self._stack.prometheus
        query = "sum by (job) (increase(streamwarden_commit_duration_seconds_count[1m])) > 0"
        commits = {one["metric"]["job"] for one in ask("query", query=query)["result"]}
        rules = [rule["health"] for group in ask("rules")["groups"] for rule in group["rules"]]
        return commits >= set(JOBS) and set(rules) == {"ok"}

    def _phases(self) -> set[str]:
        jobs = self._stack.ask("state")["jobs"]
        if failed := {name: job for name, job in jobs.items() if job["phase"] == "failed"}:
            raise StackError(f"failed: {failed}")
        return {job["phase"] for job in jobs.values()}

    def _run(self, dag: str, conf: dict[str, Any], timeout: float) -> str:
        began, client = time.monotonic(), self._stack.client
        run = client.trigger_dag(dag, conf)
        state = client.wait_for_run(dag, run, timeout=timeout)
        if state != "success":
            logs = [
                f"-- {name}: {task['state']}\n{client.task_log(dag, run, name)[-3000:]}"
                for name, task in client.tasks(dag, run).items()
                if task["state"] == "failed"
            ]
            raise StackError(f"{dag} {conf} ended as {state}\n" + "\n".join(logs))
        self._note(dag, time.monotonic() - began)
        return run

    def _note(self, what: str, seconds: float) -> None:
        self.seconds[what] = round(seconds, 1)
        self._stack.say(f"{what}: {seconds:.1f} s")
