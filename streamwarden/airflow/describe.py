"""The description of a job in its DAG. Read at parse time: fast, and never raises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from streamwarden.model.spec import SavepointSpec
from streamwarden.savepoints.schedule import schedule_text
from streamwarden.store.config import config_dir

__all__ = ["dag_id_of", "describe_job", "periodic_dag_id", "periodic_savepoints", "schedule_text"]

# libyaml if available: the whole parse of a DAG file must stay well under a second.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 50

_GUIDE = (
    "Configured in `config/jobs/{file}`. Triggering this DAG deploys the job and supervises it until it is stopped (DAG"
    " `stop`). While it is deferred, `supervise` holds no worker slot. A dead or silent driver is restarted from its"
    " checkpoint, within the job's restart budget. Marking `supervise` failed stops the driver. Clearing it does not:"
    " it deploys the job if it is down, and supervises it again."
)


def dag_id_of(job: str) -> str:
    """Return the id of a job's DAG. An invalid file name also gets an id: its DAG shows the error."""
    return f"job_{_as_id(job)}"


def periodic_dag_id(job: str) -> str:
    """Return the id of the DAG that takes a job's periodic savepoints."""
    return f"savepoint_{_as_id(job)}"


def describe_job(job: str, *, config: Path | None = None) -> tuple[str, str]:
    """Return a job's one-line description and its DAG's text.

    Reads the YAML without validation. If a job's file is invalid, the job keeps its DAG and its deploy task fails with
    file and field; other jobs' DAGs are unaffected.
    """
    path = (config or config_dir()) / "jobs" / f"{job}.yaml"
    try:
        raw = _read(path)
        text = str(raw.get("description") or "").strip()
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError, AttributeError) as error:
        # Not its text, which shows the line: it may hold a secret.
        text = f"**{path.name} cannot be read** ({type(error).__name__}): the job's deploy task names the line"
    first = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0].replace("\n", " ")
    return first[:200], f"{text}\n\n{_GUIDE.format(file=path.name)}"


def periodic_savepoints(job: str, *, config: Path | None = None) -> SavepointSpec | None:
    """Return the savepoint settings in a job's YAML if periodic savepoints are enabled, else None.

    Validates this section only. An invalid section counts as None: the job's deploy task names file and field.
    """
    try:
        spec = SavepointSpec.model_validate(_read((config or config_dir()) / "jobs" / f"{job}.yaml")["savepoints"])
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError, LookupError):
        return None
    return None if spec.every is None and spec.cron is None else spec


def _as_id(job: str) -> str:
    return re.sub(r"[^\w.-]", "_", job, flags=re.ASCII)


def _read(path: Path) -> Any:
    text, depth = path.read_text(encoding="utf-8"), 0
    # libyaml's loader ends the process at some thousand levels, and with it the parse of all DAGs. Its parser does not.
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
    return yaml.load(text, Loader=_Loader)
