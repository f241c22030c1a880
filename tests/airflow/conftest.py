"""Airflow in this process on a database of its own, and jobs whose driver is a stand-in without Spark."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

# Before anything imports airflow: it reads its configuration once, at import.
_HOME = Path(tempfile.mkdtemp(prefix="streamwarden-airflow-"))
for _key in [key for key in os.environ if key.startswith("AIRFLOW")]:
    del os.environ[_key]
os.environ |= {
    "AIRFLOW_HOME": str(_HOME),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).resolve().parents[2] / "dags"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_HOME / 'airflow.db'}",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
}

from streamwarden.airflow.triggers import SuperviseTrigger  # noqa: E402
from streamwarden.operations.deploy import deploy_job  # noqa: E402
from streamwarden.runtime.processes import kill  # noqa: E402
from streamwarden.store.documents import JobDocuments  # noqa: E402
from streamwarden.store.workspace import Workspace, open_workspace  # noqa: E402
from streamwarden.supervision import driver_control  # noqa: E402
from streamwarden.supervision.observe import Observation, Phase, observe  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
STANDIN = "tests.airflow.standin_driver"


def pytest_sessionfinish() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_database() -> None:
    from airflow.utils.db import initdb

    initdb()


@dataclass
class Run:
    """What an operator needs of a DAG run, without one."""

    run_id: str = "manual__1"
    attempt: int = 1
    granted: int = 1000
    states: dict[str, Any] = field(default_factory=lambda: {"supervise": "running"})
    dag_id: str = "job_lamp"
    run_type: str = "manual"
    runs_of_job: int = 0
    relieved: bool = False
    job_states: dict[str, Any] = field(default_factory=lambda: {"supervise": "deferred"})
    tried: dict[str, int] | None = None
    finished: str | None = None
    ended_runs: tuple[str, ...] = ()
    job_paused: bool = False
    conf: dict[str, Any] = field(default_factory=dict)
    person: str | None = None

    def _states(self, *, dag_id: str, **_: Any) -> dict[str, Any]:
        return {self.run_id: dict(self.states)} if dag_id == self.dag_id else {"another": dict(self.job_states)}

    def _count(self, *, dag_id: str, run_ids: Any = None, states: Any = (), **_: Any) -> int:
        if not run_ids or dag_id != self.dag_id:
            return self.runs_of_job
        return len({*run_ids} & {*self.ended_runs}) if "success" in states else int(self.relieved)

    def context(self, task: str = "supervise") -> Any:
        from airflow.sdk import timezone

        pushed: dict[str, Any] = {}
        ti = SimpleNamespace(
            dag_id=self.dag_id,
            run_id=self.run_id,
            task_id=task,
            try_number=self.attempt,
            max_tries=self.granted,
            xcom_push=lambda key, value: pushed.update({key: value}),
            xcom_pull=lambda *, key, **_: {"try": self.tried, "finished": self.finished}.get(key),
            get_task_states=self._states,
            get_dr_count=self._count,
            get_dag=lambda _: SimpleNamespace(is_paused=self.job_paused),
            pushed=pushed,
        )
        dag_run = SimpleNamespace(
            run_after=timezone.utcnow(), run_type=self.run_type, conf=self.conf, triggering_user_name=self.person
        )
        return {"ti": ti, "dag_run": dag_run, "params": {}}


class Place:
    """A configuration, a root, and what tests do with the job ``lamp`` there."""

    job = "lamp"

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config"
        (self.config / "jobs").mkdir(parents=True)
        (self.config / "profiles").mkdir()
        self._root = folder / "root"
        self.write_job()
        self.workspace: Workspace = self.profile()

    def profile(self, **fields: Any) -> Workspace:
        # No driver here counts as silent because the machine is slow.
        content = {"name": "test", "root": str(self._root), "heartbeat": "300ms", "lease": "30s", **fields}
        (self.config / "profiles" / "test.yaml").write_text(yaml.safe_dump(content))
        self.workspace = open_workspace("test", config=self.config)
        return self.workspace

    def write_job(
        self,
        name: str = "lamp",
        *,
        restarts: dict[str, Any] | None = None,
        savepoints: dict[str, Any] | None = None,
        health: dict[str, Any] | None = None,
        advisor: dict[str, Any] | None = None,
        trigger: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        spec = {
            "name": name,
            "description": "A stand-in. It has a second sentence.",
            "module": "spark_jobs.none",
            "source": {"kind": "files", "path": "landing"},
            "sinks": [{"table": name, "mode": "append"}],
            "restarts": {"max": 3, "backoff": "200ms", **(restarts or {})},
            "savepoints": savepoints or {},
            "health": health or {},
            "advisor": advisor or {},
            "trigger": trigger or {},
            "options": options,
        }
        (self.config / "jobs" / f"{name}.yaml").write_text(yaml.safe_dump(spec))

    def gate(self, name: str) -> Path:
        """A file that a stand-in waits for."""
        return self.config.parent / f"{name}.gate"

    def place(self) -> dict[str, str]:
        return {"profile": "test", "config": str(self.config), "root": str(self.workspace.root)}

    def deploy(self) -> Observation:
        deploy_job(self.workspace, self.job, by="test")
        return self.until(lambda seen: seen.phase is Phase.RUNNING)

    def seen(self) -> Observation:
        return observe(self.workspace, self.job)

    def batch(self, number: int) -> Observation:
        """Wait until a batch is committed."""
        return self.until(lambda seen: bool(seen.heartbeat and (seen.heartbeat.batch or 0) >= number))

    def until(self, condition: Callable[[Observation], bool], *, timeout: float = 120) -> Observation:
        return driver_control.wait_for(self.workspace, self.job, condition, timeout=timeout, what="the test", poll=0.05)

    def end(self) -> None:
        for launch in (self.workspace.root / "control").glob("*/incarnations/*/launch.json"):
            job, incarnation = launch.parts[-4], launch.parts[-2]
            document = JobDocuments(self.workspace.storage, job).launch(incarnation).read()
            if document is not None and document.process is not None:
                kill(document.process)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("STREAMWARDEN_DRIVER_MODULE", STANDIN)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("STREAMWARDEN_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("STREAMWARDEN_PROFILE", "test")
    monkeypatch.delenv("STREAMWARDEN_ROOT", raising=False)
    made = Place(tmp_path)
    yield made
    made.end()


def reborn(trigger: SuperviseTrigger, run: Run) -> SuperviseTrigger:
    """Return the trigger as a triggerer makes it of its serialised form."""
    path, arguments = trigger.serialize()
    assert path == "streamwarden.airflow.triggers.SuperviseTrigger"
    again = SuperviseTrigger(**arguments)
    again.task_instance = SimpleNamespace(dag_id=run.dag_id, run_id=run.run_id, task_id="supervise")
    # No scheduler here that could be too slow to notice a deferral.
    again.settle, again.poll_interval = 0.0, 0.1
    return again


def fired(trigger: SuperviseTrigger, *, within: float = 120) -> dict[str, Any] | None:
    """Run a trigger until it fires and return its payload, or None if it does not."""

    async def bounded() -> Any:
        return await asyncio.wait_for(_first_of(trigger), within)

    try:
        return asyncio.run(bounded())
    except TimeoutError:
        return None


@contextmanager
def watched(trigger: SuperviseTrigger) -> Iterator[list[Any]]:
    """Run a trigger beside what is done in the block; what it fires meanwhile is in the list after it."""
    over, fires = threading.Event(), []

    async def watch() -> None:
        first = asyncio.create_task(_first_of(trigger))
        while not over.is_set() and not first.done():
            await asyncio.sleep(0.05)
        if first.done():
            fires.append(first.result())
        first.cancel()

    watching = threading.Thread(target=lambda: asyncio.run(watch()), daemon=True)
    watching.start()
    try:
        yield fires
    finally:
        over.set()
        watching.join(30)


async def _first_of(trigger: SuperviseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    return None
