"""Client for the part of Airflow's REST API that the demo, ``make up`` and the tests need.

By hand: on apache-airflow-client 3.3.2 the same methods are 108 lines of code instead of 115, because login and
retries stay. Its import takes 1.7 s of CPU.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_random_exponential

from streamwarden.errors import StreamwardenError
from streamwarden.runtime.polling import Deadline

__all__ = ["AirflowClient", "AirflowRequestFailed"]

_ENDED = ("success", "failed")

_PAGE = 100
"""Entries asked for at once: the most that Airflow gives by default (``[api] maximum_page_limit``)."""


class AirflowRequestFailed(StreamwardenError):
    """Airflow refused a request, or an awaited state did not come.

    Parameters
    ----------
    status
        HTTP status of the refusal, if any.
    """

    def __init__(self, what: str, *, status: int | None = None) -> None:
        super().__init__("AIRFLOW_REQUEST_FAILED", what)
        self.status = status


def new_run_id() -> str:
    """Return an id for a run triggered by the API."""
    return f"api__{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}_{uuid.uuid4().hex[:8]}"


class AirflowClient:
    """Client of an API server; logs in when necessary.

    A response of 500 or above is retried, three times within some seconds: on SQLite, Airflow returns such responses
    when two of its processes write at once. Other refusals raise at once.

    Parameters
    ----------
    url
        The server, such as ``http://127.0.0.1:8080``.
    user, password
        The login. The password may be a function, because the starting server may still have to create it.
    timeout
        Seconds for each request. 90: on SQLite the server may wait a minute for the lock of its database.
    """

    def __init__(self, *, url: str, user: str, password: str | Callable[[], str], timeout: float = 90.0) -> None:
        self.url = url.rstrip("/")
        self._user = user
        self._password = password
        self._token = ""
        # A proxy of the environment must not intercept local traffic.
        self._http = httpx.Client(base_url=self.url, timeout=timeout, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> dict[str, Any]:
        """Return the components' health, without a login."""
        return self._checked(self._http.get("/api/v2/monitor/health"))

    def request(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        """Send any request below ``/api/v2`` and return its JSON.

        Raises
        ------
        AirflowRequestFailed
            With the server's message.
        """
        given = kwargs.pop("headers", {})
        for fresh in (False, True):
            if fresh or not self._token:
                self._log_in()
            headers = {"Authorization": f"Bearer {self._token}", **given}
            tries = Retrying(
                retry=retry_if_result(lambda answer: answer.is_server_error),
                stop=stop_after_attempt(4),
                wait=wait_random_exponential(max=4),
                retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
            )
            answer = tries(self._http.request, method, f"/api/v2{path}", headers=headers, **kwargs)
            if answer.status_code != httpx.codes.UNAUTHORIZED:
                break
        return self._checked(answer)

    def dags(self) -> list[str]:
        """Return the ids of the parsed DAGs."""
        return [dag["dag_id"] for dag in self._every("/dags", "dags")]

    def import_errors(self) -> list[dict[str, Any]]:
        """Return the DAG files that could not be loaded, with the reasons."""
        return self._every("/importErrors", "import_errors")

    def unpause(self, dag: str) -> None:
        """Unpause a DAG."""
        self.request("PATCH", f"/dags/{dag}", json={"is_paused": False})

    def trigger_dag(self, dag: str, conf: dict[str, Any] | None = None, *, run: str | None = None) -> str:
        """Trigger a run with params as `conf`, and return its id. Unpauses the DAG first.

        Parameters
        ----------
        run
            The run's id, of :func:`new_run_id`, for a caller that retries; default a new one.
        """
        self.unpause(dag)
        # With our own id, a retry of a request that failed after creating the run is refused, and creates no second
        # run.
        run = run or new_run_id()
        body = {"logical_date": None, "dag_run_id": run, "conf": conf or {}}
        try:
            self.request("POST", f"/dags/{dag}/dagRuns", json=body)
        except AirflowRequestFailed as error:
            if error.status != httpx.codes.CONFLICT:
                raise
        return run

    def dag_run(self, dag: str, run: str) -> dict[str, Any]:
        """Return a run; ``["state"]`` is queued, running, success or failed."""
        return self.request("GET", f"/dags/{dag}/dagRuns/{run}")

    def wait_for_run(self, dag: str, run: str, *, timeout: float, poll: float = 1.0) -> str:
        """Wait until a run has ended, and return its state.

        Raises
        ------
        AirflowRequestFailed
            If it takes longer than `timeout` seconds.
        """
        deadline = Deadline(timeout)
        while (state := str(self.dag_run(dag, run)["state"])) not in _ENDED:
            if not deadline.pause(poll):
                raise AirflowRequestFailed(f"{dag} {run} is still {state} after {timeout:.0f} s")
        return state

    def tasks(self, dag: str, run: str) -> dict[str, dict[str, Any]]:
        """Return a run's task instances by task id."""
        found = self._every(f"/dags/{dag}/dagRuns/{run}/taskInstances", "task_instances")
        return {task["task_id"]: task for task in found}

    def task_state(self, dag: str, run: str, task: str) -> str | None:
        """Return a task's state."""
        return self.tasks(dag, run)[task]["state"]  # type: ignore[no-any-return]

    def wait_for_task(
        self, dag: str, run: str, task: str, states: tuple[str, ...], *, timeout: float, poll: float = 1.0
    ) -> str:
        """Wait until a task is in one of some states, and return that state.

        Raises
        ------
        AirflowRequestFailed
            If the task reaches none within `timeout` seconds, or ends in another state.
        """
        deadline = Deadline(timeout)
        while (state := self.task_state(dag, run, task)) not in states:
            if state in ("success", "failed", "upstream_failed", "skipped") or not deadline.pause(poll):
                raise AirflowRequestFailed(f"{dag} {run} {task} is {state}, not {' or '.join(states)}")
        return state

    def set_task_state(self, dag: str, run: str, task: str, state: str) -> None:
        """Mark a task ``failed`` or ``success``, as a person can in the UI."""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}"
        self.request("PATCH", path, json={"new_state": state})

    def clear_task(self, dag: str, run: str, task: str) -> None:
        """Clear a task, so that it runs again."""
        body = {"dry_run": False, "dag_run_id": run, "task_ids": [task], "only_failed": False, "reset_dag_runs": True}
        self.request("POST", f"/dags/{dag}/clearTaskInstances", json=body)

    def task_log(self, dag: str, run: str, task: str, *, attempt: int | None = None) -> str:
        """Return a task's log as text, with the trigger's lines; default its newest try."""
        attempt = attempt or int(self.tasks(dag, run)[task]["try_number"])
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{attempt}"
        answer = self.request(
            "GET", path, params={"full_content": True, "map_index": -1}, headers={"Accept": "application/json"}
        )
        return "\n".join(_line(entry) for entry in answer["content"])

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value") -> Any:
        """Return a value pushed by a task."""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/{key}"
        return self.request("GET", path, params={"deserialize": True})["value"]

    def _every(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return all entries of a list, which the server gives in pages of at most a hundred."""
        found: list[dict[str, Any]] = []
        while True:
            answer = self.request("GET", path, params={"limit": _PAGE, "offset": len(found)})
            found += answer[name]
            if not answer[name] or len(found) >= answer["total_entries"]:
                return found

    def _log_in(self) -> None:
        password = self._password if isinstance(self._password, str) else self._password()
        answer = self._http.post("/auth/token", json={"username": self._user, "password": password})
        self._token = str(self._checked(answer)["access_token"])

    def _checked(self, answer: httpx.Response) -> dict[str, Any]:
        if answer.is_error:
            raise AirflowRequestFailed(
                f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:500]}",
                status=answer.status_code,
            )
        found = answer.json() if answer.content else {}
        return found if isinstance(found, dict) else {"value": found}


def _line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    parts = [str(entry.get("timestamp") or "")[:19], str(entry.get("level") or ""), str(entry.get("event") or "")]
    return " ".join(part for part in parts if part)
