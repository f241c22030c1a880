"""An operator that folds late rows in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from streamwarden.airflow.operators.command import CommandOperator

__all__ = ["CorrectOperator"]


class CorrectOperator(CommandOperator):
    """Finds late rows that the watermark dropped, and folds them in, in a separate process.

    Does not publish: the gate checks the commit as any other. The job may run.

    Parameters
    ----------
    names
        Jobs or tables; if empty, all that have a `reconcile`. (templated, or set by `names_param`)
    names_param
        A DAG param that holds the list of names, and replaces `names`.
    apply
        False: only report. (templated, or set by `apply_param`)
    apply_param
        A DAG param that replaces `apply`.
    profile, config, root
        The place; default the worker's ``STREAMWARDEN_PROFILE``, ``_CONFIG`` and ``_ROOT``.
    """

    template_fields: Sequence[str] = ("names",)
    ui_color = "#efe4f2"

    def __init__(
        self,
        *,
        names: Sequence[str] = (),
        names_param: str | None = None,
        apply: bool = True,
        apply_param: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.names = names
        self.names_param = names_param
        self.apply = apply
        self.apply_param = apply_param

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Run the command for each name; return what was found, and the commits."""
        params = context["params"]
        names = params[self.names_param] if self.names_param else self.names
        verb = "apply" if (params[self.apply_param] if self.apply_param else self.apply) else "find"
        done: list[dict[str, Any]] = []
        for name in [[str(one)] for one in names] or [[]]:
            code, output, errors = self.run_command(["corrections", verb, *name, "--json"])
            if code:
                raise AirflowException(
                    f"{' '.join(name) or 'corrections'}: the command ended with code {code}: {errors or 'no output'}"
                )
            for one in json.loads(output):
                words = "%s: %s late rows in %s rows, %s others differ; version %s"
                self.log.info(words, one["table"], one["late"], one["rows"], one["other"], one.get("commit"))
                done.append({key: one.get(key) for key in ("table", "late", "rows", "missing", "other", "commit")})
        return done
