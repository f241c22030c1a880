"""Reject a DAG run's conf with unknown keys.

Airflow validates the values of a DAG's params and silently ignores all other keys: with a misspelt key, the default
would stay in force. The form sends only known keys; the REST API and ``airflow dags trigger`` send what they are given.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from streamwarden.airflow.run_handover import RELIEVES
from streamwarden.errors import StreamwardenError

__all__ = ["ADVISED", "RELIEVES", "known_keys_only"]

ADVISED = "advised"
"""The key that ``advise`` sets in the conf of the rescale that it triggers."""


def known_keys_only(*passed: str) -> Callable[[Context], None]:
    """Return a ``pre_execute`` for a DAG's first task: it fails, for good, if the run's conf has other keys.

    Parameters
    ----------
    passed
        Keys that are not params: Streamwarden's own tasks trigger the DAG with them.
    """

    def check(context: Context) -> None:
        run = context["dag_run"]
        params = [*context["dag"].params]
        unknown = sorted({*(run.conf or {})} - {*params, *passed})
        if unknown:
            known = ", ".join(params) or "none"
            what = f"{run.dag_id}: {', '.join(unknown)}; known: {known}"
            raise AirflowFailException(str(StreamwardenError("RUN_CONF_UNKNOWN", what)))

    return check
