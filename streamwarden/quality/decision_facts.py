"""The facts of a decision of the gate, for events: its range, its score, and the rules that failed."""

from __future__ import annotations

from typing import Any

from streamwarden.errors import StreamwardenError
from streamwarden.model.gate import Decision
from streamwarden.quality.documents import read_run
from streamwarden.quality.results import TableResult
from streamwarden.storage import LocalStorage
from streamwarden.store.layout import QUALITY
from streamwarden.store.workspace import Workspace

__all__ = ["facts_of", "result_of"]


def result_of(workspace: Workspace, table: str, decision: Decision) -> TableResult | None:
    """Return the check's results; None if nothing was checked, or if its documents are not on this machine."""
    if decision.run is None:
        return None
    try:
        run = read_run(LocalStorage(workspace.root), QUALITY, decision.run)
    except StreamwardenError:
        return None
    return next((one for one in run.tables if one.table == table), None)


def facts_of(workspace: Workspace, table: str, decision: Decision) -> dict[str, Any]:
    """Return a decision as JSON values.

    Returns
    -------
    dict
        ``table``; ``decision`` (published, held, accepted); ``from_version`` and ``to_version``, the first and last
        of the range; ``rows``, checked; ``score``, the share of expectations that hold, 0 to 1, None if none was
        evaluated; ``failed``, the ids of those that do not hold, warnings too; ``run``, ``by``, ``note``, ``at``.
    """
    result = result_of(workspace, table, decision)
    evaluated = result.expectations if result is not None else ()
    failed = [one.id for one in evaluated if not one.success]
    return {
        "table": table,
        "decision": decision.verdict.value,
        # A hold for the published rows themselves has an empty range: then both are that version.
        "from_version": min(decision.after + 1, decision.version),
        "to_version": decision.version,
        "rows": decision.rows,
        "score": round(1 - len(failed) / len(evaluated), 4) if evaluated else None,
        "failed": failed,
        "run": decision.run,
        "by": decision.by,
        "note": decision.note,
        "at": decision.at.isoformat(),
    }
