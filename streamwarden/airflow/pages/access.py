"""Who may see which page: Airflow's own permissions, asked anew by each request.

Everybody needs Airflow's permission to see plugins. A page of a job needs the permission to read the job's DAG, and a
list shows the jobs whose DAGs may be read. An act is offered to those who may trigger its DAG; Airflow's form asks
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException

from streamwarden.airflow.describe import dag_id_of
from streamwarden.airflow.pages.acts import Act, acts_of

__all__ = ["SEES_PLUGINS", "Reader", "reader"]

SEES_PLUGINS = Depends(requires_access_view(AccessView.PLUGINS))
"""The dependency of every route."""


class Reader:
    """The user of a request.

    Parameters
    ----------
    user
        Airflow's user.
    """

    def __init__(self, user: Any) -> None:
        self._user = user

    def sees(self, job: str) -> bool:
        """Return whether the user may read the DAG of a job."""
        return self._may("GET", dag_id_of(job))

    def sees_dag(self, dag_id: str) -> bool:
        """Return whether the user may read a DAG."""
        return self._may("GET", dag_id)

    def of(self, jobs: Iterable[str]) -> list[str]:
        """Return the jobs that the user may see, in the same order."""
        ids = {job: dag_id_of(job) for job in jobs}
        seen: set[str] = set()
        for team, its in _by_team(ids.values()).items():
            seen |= get_auth_manager().filter_authorized_dag_ids(dag_ids=its, user=self._user, team_name=team)
        return [job for job, dag_id in ids.items() if dag_id in seen]

    def may_read_logs(self, job: str) -> bool:
        """Return whether the user may read the logs of a job's tasks, and so of its drivers."""
        return self._may("GET", dag_id_of(job), DagAccessEntity.TASK_LOGS)

    def may_trigger(self, dag_id: str) -> bool:
        """Return whether the user may trigger a DAG."""
        return self._may("POST", dag_id, DagAccessEntity.RUN)

    def acts(self, job: str) -> list[Act]:
        """Return what the user may do about a job."""
        return acts_of(self.may_trigger, job)

    def require(self, job: str) -> None:
        """Raise, unless the user may see a job.

        Raises
        ------
        HTTPException
            403.
        """
        if not self.sees(job):
            raise HTTPException(403, f"You may not read the DAG {dag_id_of(job)}")

    def _may(self, method: Any, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
        team = next(iter(_by_team([dag_id])))
        return bool(
            get_auth_manager().is_authorized_dag(
                method=method, access_entity=entity, details=DagDetails(id=dag_id, team_name=team), user=self._user
            )
        )


def reader(user: GetUserDep) -> Reader:
    """Return the user of the request; a dependency of routes."""
    return Reader(user)


def _by_team(dag_ids: Iterable[str]) -> dict[str | None, set[str]]:
    """Return the DAGs by team; without teams, all under None."""
    ids = set(dag_ids)
    if not conf.getboolean("core", "multi_team", fallback=False):
        return {None: ids}
    teams = DagModel.get_dag_id_to_team_name_mapping(list(ids))
    found: dict[str | None, set[str]] = {}
    for dag_id in ids:
        found.setdefault(teams.get(dag_id), set()).add(dag_id)
    return found
