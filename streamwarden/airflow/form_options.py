"""The jobs and savepoints that a form offers. Read at parse time: fast, and never raises."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from streamwarden.errors import StreamwardenError
from streamwarden.savepoints.catalog import LATEST, Savepoint, load
from streamwarden.store.config import job_names
from streamwarden.store.layout import CONTROL, SAVEPOINTS, document_key, job_key
from streamwarden.store.workspace import open_workspace

__all__ = ["chosen_savepoint", "offered_jobs", "offered_savepoints"]

_SEPARATOR = " · "


def offered_savepoints(jobs: Iterable[str], *, limit: int = 50, patience: float = 0.5) -> list[str]:
    """Return suggestions for a form field: ``latest``, then the newest savepoints of the jobs, each with a description.

    Airflow's form shows suggestions verbatim (`values_display` is for closed lists only), so each suggestion includes
    its description; :func:`chosen_savepoint` extracts the id. Damaged savepoints are omitted. If the place is a bucket,
    only ``latest`` is offered: parsing a DAG file must not wait for a server.

    Parameters
    ----------
    jobs
        The jobs to list.
    limit
        Maximum number of savepoints. 50: the size of a browser's list.
    patience
        Seconds for the whole call. 0.5: a parse should stay below one second. Only what is read in that time is
        offered, so a file system that hangs does not block a DAG.
    """
    found: list[str] = []
    _give_time(patience, _read, list(jobs), limit, found)
    return [LATEST, *found]


def offered_jobs(*, patience: float = 0.5) -> list[str]:
    """Return the jobs that a form may name: first those with YAML, then those deployed and wanted here without YAML.

    If the place is a bucket, only jobs with YAML are returned.

    Parameters
    ----------
    patience
        As for :func:`offered_savepoints`.
    """
    described = job_names()
    others: list[str] = []
    _give_time(patience, _read_undescribed, described, others)
    return [*described, *others]


def chosen_savepoint(text: str) -> str:
    """Return the id, label or ``latest`` from the typed or picked text."""
    return text.split(_SEPARATOR, 1)[0].strip()


def _give_time(patience: float, read: Callable[..., None], *arguments: object) -> None:
    # A daemon thread: a read that never returns blocks neither the parse nor the exit of its process.
    reader = threading.Thread(target=read, args=arguments, daemon=True)
    reader.start()
    reader.join(patience)


def _read_undescribed(described: list[str], found: list[str]) -> None:
    with suppress(Exception):
        workspace = open_workspace()
        if workspace.s3 is not None:
            return
        for job in workspace.files.folders(CONTROL):
            if job not in described:
                with suppress(OSError, ValueError, KeyError, TypeError):
                    document = json.loads((workspace.root / document_key(job, "desired")).read_bytes())
                    if document["state"] == "running":
                        found.append(job)


def _read(jobs: list[str], limit: int, found: list[str]) -> None:
    # Any fault of the place: the DAG's tasks report it, with code and remedy.
    with suppress(Exception):
        workspace = open_workspace()
        if workspace.s3 is not None:
            return
        named = [(name, job) for job in jobs for name in workspace.files.folders(job_key(SAVEPOINTS, job))]
        for name, job in sorted(named, reverse=True):
            if len(found) >= limit:
                return
            # A torn document hides only its own savepoint.
            with suppress(OSError, StreamwardenError):
                one = load(workspace, job, name)
                if one is not None and one.verdict != "damaged":
                    found.append(_SEPARATOR.join([name, job, *_words(one)]))


def _words(one: Savepoint) -> list[str]:
    words = [f"{one.summary.taken_at:%Y-%m-%d %H:%M} UTC", f"batch {one.summary.batch}"]
    words += [one.record.origin.value, one.verdict]
    label = " ".join(one.record.label.split())
    return [*words, f"“{label}”"] if label else words
