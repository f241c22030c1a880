"""An operator that replays quarantined rows."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from streamwarden.airflow.operators.base import is_true, person_of
from streamwarden.airflow.operators.command import CommandOperator
from streamwarden.errors import CATALOGUE, is_code

__all__ = ["ReplayOperator"]


class ReplayOperator(CommandOperator):
    """Sends corrected quarantined rows through their job again, as ``streamwarden quarantine replay`` does.

    Does not wait until the job has read them. A retry completes a killed try, and sends nothing twice.

    Parameters
    ----------
    table
        The table, or its quarantine table. (templated)
    rows
        Corrected lines of ``streamwarden quarantine show``; empty: rows are replayed unchanged. (templated)
    unchanged
        Replays rows as they are. Then `rows` must be empty. (templated)
    rule
        With `unchanged`: only rows that fail this rule; empty: all. (templated)
    note
        Why. (templated)
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("table", "rows", "unchanged", "rule", "note")
    ui_color = "#efe4f2"

    def __init__(
        self, *, table: str, rows: str = "", unchanged: bool | str = False, rule: str = "", note: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.table, self.rows, self.unchanged, self.rule, self.note = table, rows, unchanged, rule, note

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Replay the rows; return what was sent."""
        unchanged = is_true(self.unchanged)
        if unchanged == bool(self.rows.strip()):
            raise AirflowFailException("give the corrected rows, or choose unchanged")
        words = [
            "quarantine",
            "replay",
            self.table,
            "--note",
            self.note,
            "--by",
            f"airflow{person_of(context)}",
            "--json",
        ]
        with tempfile.TemporaryDirectory() as folder:
            if unchanged:
                words += ["--unchanged", *(("--rule", self.rule) if self.rule else ())]
            else:
                path = Path(folder) / "rows.jsonl"
                path.write_text(self.rows, encoding="utf-8")
                words += ["--rows", str(path)]
            code, output, errors = self.run_command(words)
        if code:
            told = errors.partition("[")[2].partition("]")[0]
            # A killed command has no code of its own.
            retryable = code != 2 or (is_code(told) and CATALOGUE[told].retryable)
            raise (AirflowException if retryable else AirflowFailException)(f"not replayed: {errors or 'no output'}")
        done: list[dict[str, Any]] = json.loads(output)
        for one in done:
            self.log.info("%s rows, sent as %s", one["rows"], one["sent_as"])
        return done
