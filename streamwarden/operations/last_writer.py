"""Which generation of a job wrote last to its tables: all that shows it once the job's control documents are lost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.formats.delta_log import FENCE, DeltaLog, application_id
from streamwarden.store.workspace import Workspace

__all__ = ["last_writer"]


def last_writer(workspace: Workspace, job: str, tables: Iterable[str]) -> int | None:
    """Return the generation that wrote the newest batches of a job; None if the tables do not show it.

    A generation first fences the others off in every table, then puts tables back, then writes batches. So the job's
    newest commit in each table, a fence or a batch, must be of one generation, and at least one must be a batch.
    """
    found = [newest for table in tables if (newest := _newest(DeltaLog(workspace.files, table), job)) is not None]
    generations = {generation for generation, _ in found}
    return generations.pop() if len(generations) == 1 and any(is_batch for _, is_batch in found) else None


def _newest(log: DeltaLog, job: str) -> tuple[int, bool] | None:
    """Return the generation of a job's newest commit in a table, and whether it is a batch; None without one."""
    batch = re.compile(re.escape(application_id(job, 0)[:-1]) + r"(\d+)")
    for version in reversed(log.versions):
        try:
            actions = log.actions(version)
        except StreamwardenError:
            # A damaged entry, which the driver names: it may be of any generation.
            return None
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if info.get("operation") == FENCE:
            by = info.get("operationParameters", {})
            if by.get("job") == job:
                return int(by["generation"]), False
            continue
        for action in actions:
            written = batch.fullmatch(str(action["txn"]["appId"])) if "txn" in action else None
            if written is not None:
                return int(written[1]), True
    return None
