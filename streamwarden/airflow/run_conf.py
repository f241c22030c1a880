"""Refusing a DAG run's conf that has keys which its DAG does not know.

Airflow checks the values of a DAG's params and passes over all other keys: a misspelt one would leave its default in
force, without a word. The form sends no other keys; the REST API and ``airflow dags trigger`` send what they are given.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from streamwarden.airflow.run_handover import RELIEVES
from streamwarden.errors import StreamwardenError

__all__ = ["ADVISED", "RELIEVES", "known_keys_only"]

ADVISED = "advised"
"""Passed by ``advise`` to the rescale that it triggers."""


def known_keys_only(*passed: str) -> Callable[[Context], None]:
    """Return what a DAG's first task does as ``pre_execute``: fail, for good, if the run's conf has other keys.

    Parameters
    ----------
    passed
        Keys that are no params: Streamwarden's own tasks trigger the DAG with them.
    """

    def check(context: Context) -> None:
        run = context["dag_run"]
        params = [*context["dag"].params]
        unknown = sorted({*(run.conf or {})} - {*params, *passed})
        if unknown:
            known = ", ".join(params) or "it takes none"
            what = f"{run.dag_id}: {', '.join(unknown)}; known: {known}"
            raise AirflowFailException(str(StreamwardenError("RUN_CONF_UNKNOWN", what)))

    return check
