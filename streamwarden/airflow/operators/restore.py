"""An operator that starts a job from a savepoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from streamwarden.airflow.form_options import chosen_savepoint
from streamwarden.airflow.operators.base import ProgressLog, is_true
from streamwarden.airflow.operators.operation import OperationOperator
from streamwarden.model.operation import Operation
from streamwarden.operations.restore import Outputs, restore
from streamwarden.savepoints.catalog import LATEST
from streamwarden.store.workspace import Workspace

__all__ = ["RestoreOperator"]


class RestoreOperator(OperationOperator):
    """Starts a job from a savepoint, waits until it is healthy, and rolls back if it is not.

    Returns operation, savepoint, batch, generation and the time of each step.

    Parameters
    ----------
    savepoint
        An id, a label, or ``latest`` for the newest verified one. (templated)
    outputs
        ``default`` applies each output table's ``on_restore``, ``rewind`` restores the tables, ``leave`` leaves them
        unchanged. (templated)
    suspended
        Whether to leave the job suspended on the savepoint; the next deploy starts it. (templated)
    """

    template_fields: Sequence[str] = (*OperationOperator.template_fields, "savepoint", "outputs", "suspended")
    unhealthy = "RESTORE_UNHEALTHY"

    def __init__(
        self,
        *,
        savepoint: str = LATEST,
        outputs: str = "default",
        suspended: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.suspended = suspended
        self.savepoint = savepoint
        self.outputs = outputs

    def perform(self, workspace: Workspace, by: str) -> Operation:
        """Restore, or resume the restore of an earlier try."""
        return restore(
            workspace,
            self.job,
            savepoint=chosen_savepoint(self.savepoint),
            outputs=cast(Outputs, self.outputs),
            suspended=is_true(self.suspended),
            by=by,
            reason=self.reason,
            stop_timeout=self.stop_timeout,
            health_timeout=float(self.health_timeout),
            report=ProgressLog(self.log),
        )
