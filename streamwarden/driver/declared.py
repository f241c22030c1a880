"""The outputs that a job's module declares, for processes that can't import it: a spec in, JSON out.

``python -m streamwarden.driver.declared < SPEC.json`` prints ``{"outputs": {OUTPUT: FIELDS}}``, the fields as in
Spark's JSON of a schema, or ``{"error": …}`` for a module that no driver can use. Starts no Spark.
"""

from __future__ import annotations

import contextlib
import json
import sys

from streamwarden.driver.pipeline.module import load_module, settings_for
from streamwarden.driver.pipeline.row_rules import output_schemas
from streamwarden.errors import StreamwardenError
from streamwarden.model.record import ErrorInfo
from streamwarden.model.spec import JobSpec

__all__ = ["main"]


def main() -> None:
    """Print the answer on standard output."""
    spec = JobSpec.model_validate_json(sys.stdin.read())
    try:
        # A module's own prints must not mix with the answer.
        with contextlib.redirect_stdout(sys.stderr):
            module = load_module(spec)
            settings_for(spec, module)
            outputs = output_schemas(spec, module)
        answer = {"outputs": {name: schema.jsonValue()["fields"] for name, schema in outputs.items()}}
    except StreamwardenError as error:
        answer = {"error": ErrorInfo.of(error).model_dump(mode="json")}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
